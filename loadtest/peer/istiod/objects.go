package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	kubeyaml "k8s.io/apimachinery/pkg/util/yaml"
	k8stesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"istio.io/istio/pkg/config"
	"istio.io/istio/pkg/config/schema/collections"
	"istio.io/istio/pkg/config/schema/resource"
	"istio.io/istio/pkg/kube"
)

// A field that no type has is an error: else a typing error in a test would go unseen.
var codecs = serializer.NewCodecFactory(kube.IstioScheme, serializer.EnableStrict)

const istioGroups = ".istio.io"

// objects is the fake Kubernetes API as the control interface writes it. With a store, each object is kept in a
// file, and is there again after a restart.
type objects struct {
	client kube.Client
	store  string
}

// object is one Kubernetes object, and where it belongs.
type object struct {
	schema resource.Schema
	meta   metav1.Object
	value  runtime.Object
	text   []byte
}

func parse(text []byte) ([]object, error) {
	var found []object
	reader := kubeyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return nil, fmt.Errorf("not YAML: %w\n%s", err, document)
		}
		if kind.Kind == "" && onlyComments(document) {
			continue
		}
		one, err := parseOne(kind, document)
		if err != nil {
			return nil, err
		}
		found = append(found, one)
	}
}

func parseOne(kind metav1.TypeMeta, document []byte) (object, error) {
	schema, err := schemaOf(config.FromKubernetesGVK(kind.GroupVersionKind()))
	if err != nil {
		return object{}, err
	}
	value, _, err := codecs.UniversalDeserializer().Decode(document, nil, nil)
	if err != nil {
		return object{}, fmt.Errorf("%s: %w\n%s", kind.Kind, err, document)
	}
	if err := checkFields(schema, document); err != nil {
		return object{}, fmt.Errorf("%s: %w\n%s", kind.Kind, err, document)
	}
	meta, ok := value.(metav1.Object)
	if !ok || meta.GetName() == "" {
		return object{}, fmt.Errorf("%s without a name:\n%s", kind.Kind, document)
	}
	switch {
	case schema.IsClusterScoped():
		meta.SetNamespace("")
	case meta.GetNamespace() == "":
		meta.SetNamespace("default")
	}
	// As the API server does; the same after a restart, so that tokens bound to a pod stay good.
	if meta.GetUID() == "" {
		meta.SetUID(types.UID(strings.ToLower(kind.Kind) + "." + meta.GetNamespace() + "." + meta.GetName()))
	}
	return object{schema: schema, meta: meta, value: value, text: document}, nil
}

// checkFields does for istio's own kinds, whose decoders pass over unknown fields, what the strict codec does for
// the others.
func checkFields(schema resource.Schema, document []byte) error {
	if !strings.HasSuffix(schema.Group(), istioGroups) {
		return nil
	}
	var parts struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := yaml.Unmarshal(document, &parts); err != nil || parts.Spec == nil {
		return err
	}
	spec, err := schema.NewInstance()
	if err != nil {
		return err
	}
	return config.ApplyJSONStrict(spec, string(parts.Spec))
}

// schemaOf wants the version that istiod itself watches: the fake API converts none.
func schemaOf(kind config.GroupVersionKind) (resource.Schema, error) {
	schema, ok := collections.All.FindByGroupKind(kind)
	if !ok {
		return nil, fmt.Errorf("kind %q of group %q isn't one that istiod reads", kind.Kind, kind.Group)
	}
	if schema.Version() != kind.Version {
		return nil, fmt.Errorf("%s: istiod reads version %s, this is %q", kind.Kind, schema.Version(), kind.Version)
	}
	return schema, nil
}

func onlyComments(document []byte) bool {
	for line := range strings.Lines(string(document)) {
		line = strings.TrimSpace(line)
		if line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

// apply creates the object, or puts it (with its status) in the place of the one of that name.
func (o *objects) apply(one object) error {
	resources, namespace := one.schema.GroupVersionResource(), one.meta.GetNamespace()
	tracker := o.tracker(one.schema.Group())
	err := tracker.Create(resources, one.value, namespace)
	if apierrors.IsAlreadyExists(err) {
		err = tracker.Update(resources, one.value, namespace)
	}
	if err != nil {
		return fmt.Errorf("%s %s/%s: %w", one.schema.Kind(), namespace, one.meta.GetName(), err)
	}
	if o.store == "" {
		return nil
	}
	return os.WriteFile(o.file(one.schema, namespace, one.meta.GetName()), one.text, 0o600)
}

func (o *objects) delete(kind, namespace, name string) error {
	for _, schema := range collections.All.All() {
		if schema.Kind() != kind {
			continue
		}
		if schema.IsClusterScoped() {
			namespace = ""
		}
		if err := o.tracker(schema.Group()).Delete(schema.GroupVersionResource(), namespace, name); err != nil {
			if apierrors.IsNotFound(err) {
				continue // Another group may have a kind of the same name.
			}
			return err
		}
		if o.store == "" {
			return nil
		}
		if err := os.Remove(o.file(schema, namespace, name)); !os.IsNotExist(err) {
			return err
		}
		return nil
	}
	return fmt.Errorf("no %s %s/%s", kind, namespace, name)
}

func (o *objects) file(schema resource.Schema, namespace, name string) string {
	return filepath.Join(o.store, fmt.Sprintf("%s.%s_%s_%s.yaml", schema.Kind(), schema.Group(), namespace, name))
}

func (o *objects) tracker(group string) k8stesting.ObjectTracker {
	var client any = o.client.Kube()
	switch {
	case strings.HasSuffix(group, istioGroups):
		client = o.client.Istio()
	case group == "gateway.networking.k8s.io":
		client = o.client.GatewayAPI()
	}
	return client.(interface {
		Tracker() k8stesting.ObjectTracker
	}).Tracker()
}

// read gives what the files, and the YAML files of the directories, hold.
func read(paths []string) ([]object, error) {
	var found []object
	for _, path := range paths {
		files := []string{path}
		if status, err := os.Stat(path); err != nil {
			return nil, err
		} else if status.IsDir() {
			files, _ = filepath.Glob(filepath.Join(path, "*.yaml"))
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			parsed, err := parse(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			found = append(found, parsed...)
		}
	}
	return found, nil
}
