package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	certificates "istio.io/api/security/v1alpha1"
	"istio.io/istio/pkg/workloadapi"
	"istio.io/istio/pkg/workloadapi/security"
	"istio.io/istio/security/pkg/pki/util"
)

const (
	addressType       = "type.googleapis.com/istio.workload.Address"
	authorizationType = "type.googleapis.com/istio.security.Authorization"
	patience          = 20 * time.Second
)

const firstObjects = `# What a test needs at least.
apiVersion: v1
kind: Namespace
metadata: {name: istio-system}
---
apiVersion: v1
kind: Namespace
metadata: {name: demo}
---
apiVersion: v1
kind: Pod
metadata: {name: ztunnel-1, namespace: istio-system}
spec: {nodeName: node-1, serviceAccountName: ztunnel}
status: {phase: Running, podIP: 10.0.1.1, podIPs: [{ip: 10.0.1.1}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata:
  {name: near, namespace: demo, labels: {app: near}, annotations: {ambient.istio.io/redirection: enabled}}
spec: {nodeName: node-1, serviceAccountName: near}
status: {phase: Running, podIP: 10.0.1.2, podIPs: [{ip: 10.0.1.2}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata:
  {name: far, namespace: demo, labels: {app: far}, annotations: {ambient.istio.io/redirection: enabled}}
spec: {nodeName: node-2, serviceAccountName: far}
status: {phase: Running, podIP: 10.0.2.2, podIPs: [{ip: 10.0.2.2}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: demo}
spec: {clusterIP: 10.9.0.1, clusterIPs: [10.9.0.1], selector: {app: far}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-near, namespace: demo}
spec:
  selector: {matchLabels: {app: far}}
  rules: [{from: [{source: {principals: [cluster.local/ns/demo/sa/near]}}]}]
`

const laterPod = `apiVersion: v1
kind: Pod
metadata:
  {name: later, namespace: demo, labels: {app: far}, annotations: {ambient.istio.io/redirection: enabled}}
spec: {nodeName: node-2, serviceAccountName: far}
status: {phase: Running, podIP: 10.0.2.3, podIPs: [{ip: 10.0.2.3}], conditions: [{type: Ready, status: "True"}]}
`

// With this variable the test's own program is the peer.
const asPeer = "ISTIOD_PEER_TEST_RUNS_PEER"

func TestMain(m *testing.M) {
	if os.Getenv(asPeer) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// peer is a started istiod-peer.
type peer struct {
	t         *testing.T
	directory string
	process   *exec.Cmd
	addresses map[string]string
}

func start(t *testing.T, directory string, args ...string) *peer {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	_ = os.Remove(filepath.Join(directory, "addresses.json"))
	args = append([]string{
		"--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--out-dir", directory,
		"--store", filepath.Join(directory, "store"),
	}, args...)
	p := &peer{t: t, directory: directory, process: exec.Command(self, args...)}
	p.process.Env = append(os.Environ(), asPeer+"=1")
	p.process.Stdout, p.process.Stderr = os.Stdout, os.Stderr
	must(t, p.process.Start())
	t.Cleanup(p.stop)
	eventually(t, "the peer is ready", func() bool {
		text, err := os.ReadFile(filepath.Join(directory, "addresses.json"))
		if err != nil || json.Unmarshal(text, &p.addresses) != nil {
			return false
		}
		answer, err := http.Get("http://" + p.addresses["control"] + "/ready")
		return err == nil && answer.StatusCode == http.StatusOK
	})
	return p
}

func (p *peer) stop() {
	_ = p.process.Process.Kill()
	_ = p.process.Wait()
}

func (p *peer) ask(method, path, body string) (int, string) {
	p.t.Helper()
	request, err := http.NewRequest(method, "http://"+p.addresses["control"]+path, strings.NewReader(body))
	must(p.t, err)
	answer, err := http.DefaultClient.Do(request)
	must(p.t, err)
	text, err := io.ReadAll(answer.Body)
	must(p.t, err)
	return answer.StatusCode, string(text)
}

// connect gives a connection over TLS, and a context that shows the token.
func (p *peer) connect(token string) (*grpc.ClientConn, context.Context) {
	p.t.Helper()
	root, err := os.ReadFile(filepath.Join(p.directory, "root-cert.pem"))
	must(p.t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(root)
	secure := credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "istiod.istio-system.svc"})
	connection, err := grpc.NewClient(p.addresses["listen"], grpc.WithTransportCredentials(secure))
	must(p.t, err)
	p.t.Cleanup(func() { _ = connection.Close() })
	until, cancel := context.WithTimeout(p.t.Context(), patience)
	p.t.Cleanup(cancel)
	return connection, metadata.AppendToOutgoingContext(until, "authorization", "Bearer "+token,
		"clusterid", cluster)
}

func (p *peer) tokenOf(pod string) string {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.directory, "istio-token-"+pod))
	must(p.t, err)
	return string(text)
}

func write(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "objects.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestDiscovery(t *testing.T) {
	p := start(t, t.TempDir(), "--objects", write(t, firstObjects))
	connection, asked := p.connect(p.tokenOf("ztunnel-1"))
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(asked)
	must(t, err)
	about, err := structpb.NewStruct(map[string]any{
		"NAMESPACE": "istio-system", "SERVICE_ACCOUNT": "ztunnel", "NODE_NAME": "node-1", "CLUSTER_ID": cluster,
	})
	must(t, err)
	node := &core.Node{Id: "ztunnel~10.0.1.1~ztunnel-1.istio-system~istio-system.svc.cluster.local", Metadata: about}
	for _, kind := range []string{addressType, authorizationType} {
		must(t, stream.Send(&discovery.DeltaDiscoveryRequest{
			Node: node, TypeUrl: kind, ResourceNamesSubscribe: []string{"*"},
		}))
	}
	near := receive(t, stream, "Kubernetes//Pod/demo/near")
	workload := &workloadapi.Address{}
	must(t, near.Resource.UnmarshalTo(workload))
	if of := workload.GetWorkload(); of.TunnelProtocol != workloadapi.TunnelProtocol_HBONE || of.Node != "node-1" {
		t.Fatalf("the pod is %v", of)
	}
	// All came in one answer to the first request.
	policy := &security.Authorization{}
	must(t, receive(t, stream, "demo/only-near").Resource.UnmarshalTo(policy))
	if policy.Scope != security.Scope_WORKLOAD_SELECTOR || policy.Action != security.Action_ALLOW {
		t.Fatalf("the policy is %v", policy)
	}

	if code, text := p.ask("PUT", "/apply", laterPod); code != http.StatusOK {
		t.Fatal(code, text)
	}
	receive(t, stream, "Kubernetes//Pod/demo/later")
	if code, text := p.ask("DELETE", "/object/Pod/demo/later", ""); code != http.StatusOK {
		t.Fatal(code, text)
	}
	receive(t, stream, "-Kubernetes//Pod/demo/later")

	_, state := p.ask("GET", "/state", "")
	for _, name := range []string{"Kubernetes//Pod/demo/far", "demo/far.demo.svc.cluster.local", "demo/only-near"} {
		if !strings.Contains(state, name) {
			t.Errorf("no %s in %s", name, state)
		}
	}
	if _, text := p.ask("GET", "/connections", ""); !strings.Contains(text, "ztunnel-1.istio-system") {
		t.Error(text)
	}
	const head = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: x}\n"
	for _, bad := range []string{
		"kind: Pod", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspeck: {}\n", head + "spec: {rulez: []}\n",
	} {
		if code, text := p.ask("PUT", "/apply", bad); code != http.StatusBadRequest {
			t.Error(code, text)
		}
	}
}

func TestBadTokenIsRefused(t *testing.T) {
	p := start(t, t.TempDir(), "--objects", write(t, firstObjects))
	token := p.tokenOf("ztunnel-1")
	for _, bad := range []string{"", "x", token + "x", "x" + token} {
		connection, asked := p.connect(bad)
		stream, err := discovery.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(asked)
		must(t, err)
		if _, err = stream.Recv(); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestCertificates(t *testing.T) {
	directory := t.TempDir()
	p := start(t, directory, "--objects", write(t, firstObjects))
	token := p.tokenOf("ztunnel-1")
	const near, far = "spiffe://cluster.local/ns/demo/sa/near", "spiffe://cluster.local/ns/demo/sa/far"
	leaf, err := p.certificate(token, near)
	must(t, err)
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != near {
		t.Fatalf("a certificate of %v", leaf.URIs)
	}
	if _, err = p.certificate(token, far); status.Code(err) != codes.Unauthenticated {
		t.Fatalf("a certificate of another node's pod: %v", err)
	}
	_, plain := p.ask("GET", "/token/demo/near", "")
	if _, err = p.certificate(plain, near); status.Code(err) != codes.Unauthenticated {
		t.Fatalf("a certificate for a pod that isn't trusted: %v", err)
	}
	must(t, p.apply(laterPod))
	p.stop()

	// The same root, tokens and objects after a restart.
	p = start(t, directory)
	again, err := p.certificate(token, near)
	must(t, err)
	if string(again.AuthorityKeyId) != string(leaf.AuthorityKeyId) {
		t.Error("another root after the restart")
	}
}

func (p *peer) apply(text string) error {
	if code, answer := p.ask("PUT", "/apply", text); code != http.StatusOK {
		return fmt.Errorf("%d: %s", code, answer)
	}
	return nil
}

func (p *peer) certificate(token, identity string) (*x509.Certificate, error) {
	p.t.Helper()
	request, _, err := util.GenCSR(util.CertOptions{ECSigAlg: util.EcdsaSigAlg, Host: identity})
	must(p.t, err)
	about, err := structpb.NewStruct(map[string]any{"ImpersonatedIdentity": identity})
	must(p.t, err)
	connection, asked := p.connect(token)
	answer, err := certificates.NewIstioCertificateServiceClient(connection).CreateCertificate(asked,
		&certificates.IstioCertificateRequest{Csr: string(request), ValidityDuration: 3600, Metadata: about})
	if err != nil {
		return nil, err
	}
	if len(answer.CertChain) != 2 {
		return nil, fmt.Errorf("a chain of %d", len(answer.CertChain))
	}
	block, _ := pem.Decode([]byte(answer.CertChain[0]))
	return x509.ParseCertificate(block.Bytes)
}

// receive acknowledges answers until one holds the resource, or with a leading `-` its removal.
func receive(
	t *testing.T, stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, name string,
) *discovery.Resource {
	t.Helper()
	for {
		answer, err := stream.Recv()
		if err != nil {
			t.Fatalf("waiting for %s: %v", name, err)
		}
		must(t, stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: answer.TypeUrl, ResponseNonce: answer.Nonce}))
		for _, removed := range answer.RemovedResources {
			if "-"+removed == name {
				return nil
			}
		}
		for _, resource := range answer.Resources {
			t.Logf("got %s", resource.Name)
			if resource.Name == name {
				return resource
			}
		}
	}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
