package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"istio.io/istio/pilot/test/xds"
)

const requestBytes = 64 << 20

// control is what tests talk to over HTTP: it changes objects and tells what istiod holds.
type control struct {
	objects *objects
	tokens  *tokens
	out     string
	// Set when all is up.
	server atomic.Pointer[xds.FakeDiscoveryServer]
	quit   chan struct{}
}

func (c *control) handler() http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /ready", c.ready)
	routes.HandleFunc("PUT /apply", c.apply)
	routes.HandleFunc("POST /apply", c.apply)
	routes.HandleFunc("DELETE /object/{kind}/{namespace}/{name}", c.delete)
	routes.HandleFunc("GET /token/{namespace}/{pod}", c.token)
	routes.HandleFunc("GET /state", c.state)
	routes.HandleFunc("GET /connections", c.connections)
	routes.HandleFunc("/debug/", c.debug)
	routes.HandleFunc("POST /quit", func(http.ResponseWriter, *http.Request) { close(c.quit) })
	return routes
}

func (c *control) ready(answer http.ResponseWriter, _ *http.Request) {
	if server := c.server.Load(); server == nil || !server.AmbientIndex.HasSynced() {
		http.Error(answer, "starting", http.StatusServiceUnavailable)
	}
}

func (c *control) apply(answer http.ResponseWriter, request *http.Request) {
	if c.server.Load() == nil {
		http.Error(answer, "starting", http.StatusServiceUnavailable)
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(answer, request.Body, requestBytes))
	var found []object
	if err == nil {
		found, err = parse(text)
	}
	if err == nil {
		err = c.applyAll(found)
	}
	if err != nil {
		http.Error(answer, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintln(answer, len(found))
}

// applyAll also writes a token for each pod that may ask for others' certificates.
func (c *control) applyAll(found []object) error {
	for _, one := range found {
		if err := c.objects.apply(one); err != nil {
			return err
		}
		pod, ok := one.value.(*corev1.Pod)
		if !ok || pod.Namespace != "istio-system" || pod.Spec.ServiceAccountName != "ztunnel" {
			continue
		}
		token := []byte(c.tokens.issue(pod))
		if err := replace(filepath.Join(c.out, "istio-token-"+pod.Name), token); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(c.out, "istio-token")); err == nil {
			continue
		}
		if err := replace(filepath.Join(c.out, "istio-token"), token); err != nil {
			return err
		}
	}
	return nil
}

func (c *control) delete(answer http.ResponseWriter, request *http.Request) {
	namespace := request.PathValue("namespace")
	if err := c.objects.delete(request.PathValue("kind"), namespace, request.PathValue("name")); err != nil {
		http.Error(answer, err.Error(), http.StatusNotFound)
	}
}

// token gives a token of any pod, also one that istiod trusts with nothing.
func (c *control) token(answer http.ResponseWriter, request *http.Request) {
	pod, err := c.tokens.pod(request.PathValue("namespace"), request.PathValue("pod"))
	if err != nil {
		http.Error(answer, err.Error(), http.StatusNotFound)
		return
	}
	fmt.Fprint(answer, c.tokens.issue(pod))
}

type held struct {
	Workloads []string `json:"workloads"`
	Services  []string `json:"services"`
	Policies  []string `json:"policies"`
}

func (c *control) state(answer http.ResponseWriter, _ *http.Request) {
	server := c.server.Load()
	if server == nil {
		http.Error(answer, "starting", http.StatusServiceUnavailable)
		return
	}
	names := held{Workloads: []string{}, Services: []string{}, Policies: []string{}}
	for _, address := range server.AmbientIndex.All() {
		if workload := address.GetWorkload(); workload != nil {
			names.Workloads = append(names.Workloads, workload.Uid)
		} else if service := address.GetService(); service != nil {
			names.Services = append(names.Services, service.Namespace+"/"+service.Hostname)
		}
	}
	for _, policy := range server.AmbientIndex.Policies(nil) {
		of := policy.Authorization
		names.Policies = append(names.Policies, of.Namespace+"/"+of.Name)
	}
	for _, list := range [][]string{names.Workloads, names.Services, names.Policies} {
		sort.Strings(list)
	}
	answer.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(answer).Encode(names)
}

// connections is what `istioctl proxy-status` reads.
func (c *control) connections(answer http.ResponseWriter, request *http.Request) {
	if server := c.server.Load(); server != nil {
		server.Discovery.Syncz(answer, request)
	}
}

// debug leads to istiod's own debug pages.
func (c *control) debug(answer http.ResponseWriter, request *http.Request) {
	if server := c.server.Load(); server != nil {
		server.DiscoveryDebug.ServeHTTP(answer, request)
	}
}

// replace writes a file so that no reader sees half of it.
func replace(path string, text []byte) error {
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
