package main

import (
	"encoding/json"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// object is a Kubernetes object as it was given, and what is looked at in it.
type object struct {
	raw      json.RawMessage
	Kind     string            `json:"kind"`
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
}

type objects struct {
	all []object
}

// handler answers the paths that istioctl asks for; all else isn't found.
func (o *objects) handler() http.Handler {
	routes := http.NewServeMux()
	fixed := func(path string, value any) {
		routes.HandleFunc("GET "+path, func(answer http.ResponseWriter, _ *http.Request) { write(answer, value) })
	}
	typed := func(kind string) metav1.TypeMeta { return metav1.TypeMeta{Kind: kind, APIVersion: "v1"} }
	resources := func(version, name, kind string) metav1.APIResourceList {
		one := metav1.APIResource{Name: name, Kind: kind, Namespaced: true, Verbs: []string{"get", "list"}}
		return metav1.APIResourceList{
			TypeMeta: typed("APIResourceList"), GroupVersion: version, APIResources: []metav1.APIResource{one},
		}
	}
	apps := metav1.GroupVersionForDiscovery{GroupVersion: "apps/v1", Version: "v1"}
	fixed("/api", metav1.APIVersions{TypeMeta: typed("APIVersions"), Versions: []string{"v1"}})
	fixed("/apis", metav1.APIGroupList{TypeMeta: typed("APIGroupList"), Groups: []metav1.APIGroup{{
		Name: "apps", Versions: []metav1.GroupVersionForDiscovery{apps}, PreferredVersion: apps,
	}}})
	fixed("/api/v1", resources("v1", "pods", "Pod"))
	fixed("/apis/apps/v1", resources("apps/v1", "daemonsets", "DaemonSet"))
	const pods, sets = "/api/v1/namespaces/{namespace}/pods", "/apis/apps/v1/namespaces/{namespace}/daemonsets"
	routes.HandleFunc("GET "+pods, o.list("Pod"))
	routes.HandleFunc("GET "+pods+"/{name}", o.get("Pod"))
	routes.HandleFunc("POST "+pods+"/{name}/portforward", o.forward)
	routes.HandleFunc("GET "+sets+"/{name}", o.get("DaemonSet"))
	return routes
}

func (o *objects) find(kind string, request *http.Request) *object {
	for i := range o.all {
		meta := &o.all[i].Metadata
		if o.all[i].Kind == kind && meta.Namespace == request.PathValue("namespace") &&
			meta.Name == request.PathValue("name") {
			return &o.all[i]
		}
	}
	return nil
}

func (o *objects) get(kind string) http.HandlerFunc {
	return func(answer http.ResponseWriter, request *http.Request) {
		if found := o.find(kind, request); found != nil {
			write(answer, found.raw)
			return
		}
		answer.Header().Set("Content-Type", "application/json")
		answer.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(answer).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
			Message: kind + " " + request.PathValue("name") + " not found",
		})
	}
}

// list gives the objects of a namespace that fit both selectors; of fields, those that pods can be selected by here.
func (o *objects) list(kind string) http.HandlerFunc {
	return func(answer http.ResponseWriter, request *http.Request) {
		query := request.URL.Query()
		byLabel, err := labels.Parse(query.Get("labelSelector"))
		if err != nil {
			http.Error(answer, err.Error(), http.StatusBadRequest)
			return
		}
		byField, err := fields.ParseSelector(query.Get("fieldSelector"))
		if err != nil {
			http.Error(answer, err.Error(), http.StatusBadRequest)
			return
		}
		items := []json.RawMessage{}
		for _, one := range o.all {
			named := fields.Set{"metadata.name": one.Metadata.Name, "spec.nodeName": one.Spec.NodeName}
			if one.Kind == kind && one.Metadata.Namespace == request.PathValue("namespace") &&
				byLabel.Matches(labels.Set(one.Metadata.Labels)) && byField.Matches(named) {
				items = append(items, one.raw)
			}
		}
		write(answer, map[string]any{"kind": kind + "List", "apiVersion": "v1", "metadata": struct{}{}, "items": items})
	}
}

func write(answer http.ResponseWriter, value any) {
	answer.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(answer).Encode(value)
}
