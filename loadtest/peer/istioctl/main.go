// kube-api is as much of a Kubernetes API server as the real istioctl needs to find the proxy of a node and to reach a
// port of it: it serves pods and daemon sets out of a file, and forwards ports into the pods' network namespaces over
// SPDY. It is what stands in; istioctl itself is built from istio's own module, as go.mod's `tool` line says.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: mesh
contexts: [{name: mesh, context: {cluster: mesh, user: nobody}}]
clusters: [{name: mesh, cluster: {server: "http://%s"}}]
users: [{name: nobody, user: {}}]
`

func main() {
	file := flag.String("objects", "", "JSON file: an array of Kubernetes objects")
	listen := flag.String("listen", "127.0.0.1:0", "address of the API; port 0: any")
	out := flag.String("kubeconfig", "", "file to write, once the API answers")
	flag.Parse()
	if err := run(*file, *listen, *out); err != nil {
		fmt.Fprintln(os.Stderr, "kube-api:", err)
		os.Exit(1)
	}
}

func run(file, listen, out string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	held, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	// Renamed into place, so that nobody reads half of it.
	config := fmt.Sprintf(kubeconfig, listener.Addr())
	if err := os.WriteFile(out+".new", []byte(config), 0o600); err != nil {
		return err
	}
	if err := os.Rename(out+".new", out); err != nil {
		return err
	}
	return http.Serve(listener, held.handler())
}

func parse(text []byte) (*objects, error) {
	var raw []json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, err
	}
	held := &objects{}
	for _, one := range raw {
		parsed := object{raw: one}
		if err := json.Unmarshal(one, &parsed); err != nil {
			return nil, err
		}
		held.all = append(held.all, parsed)
	}
	return held, nil
}
