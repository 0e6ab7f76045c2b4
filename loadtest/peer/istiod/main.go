// istiod-peer is istiod as a peer of tests: istio's own discovery server (ambient index, delta ADS) and its own CA
// with the node authorizer, in one process over a fake Kubernetes API. Nothing of it imitates istiod's answers; what
// is fake is the API server: its objects come from files and from a small HTTP interface, its tokens from here.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	istiogrpc "istio.io/istio/pilot/pkg/grpc"
	"istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/config/mesh"
	"istio.io/istio/pkg/config/mesh/meshwatcher"
	"istio.io/istio/pkg/keepalive"
	"istio.io/istio/pkg/kube"
	"istio.io/istio/pkg/kube/multicluster"
	"istio.io/istio/pkg/log"
	"istio.io/istio/pkg/security"
	"istio.io/istio/security/pkg/pki/ca"
	caserver "istio.io/istio/security/pkg/server/ca"
	"istio.io/istio/security/pkg/server/ca/authenticate"
	"istio.io/istio/security/pkg/server/ca/authenticate/kubeauth"
)

const cluster = "Kubernetes"

type flags struct {
	listen, plain, control string
	objects                paths
	store, out, ca         string
	mesh                   string
	usualLife, longestLife time.Duration
	maxAge                 time.Duration
	verbose                bool
}

type paths []string

func (p *paths) String() string         { return strings.Join(*p, ",") }
func (p *paths) Set(value string) error { *p = append(*p, value); return nil }

func main() {
	needEnvironment()
	var given flags
	flag.StringVar(&given.listen, "listen", "127.0.0.1:15012", "address of discovery and CA over TLS; port 0: any")
	flag.StringVar(&given.plain, "plain", "", "address of discovery in plain text; none if empty")
	flag.StringVar(&given.control, "control", "127.0.0.1:15014", "address of the HTTP control interface")
	flag.Var(&given.objects, "objects", "YAML file of Kubernetes objects, or a directory of them; repeatable")
	flag.StringVar(&given.store, "store", "", "directory that keeps the objects applied, and is read at the start")
	flag.StringVar(&given.out, "out-dir", "", "directory for root-cert.pem, istio-token-<pod> and addresses.json")
	flag.StringVar(&given.ca, "ca-dir", "", "directory of the CA's files (default: ca in out-dir)")
	flag.DurationVar(&given.usualLife, "cert-ttl", 24*time.Hour, "life of a certificate whose request names none")
	flag.DurationVar(&given.longestLife, "max-cert-ttl", 90*24*time.Hour, "a request for more is refused")
	flag.DurationVar(&given.maxAge, "max-age", keepalive.Infinity, "connections over TLS end after about this")
	flag.StringVar(&given.mesh, "mesh-config", "", "istio's mesh config, in YAML; its defaults if empty")
	flag.BoolVar(&given.verbose, "verbose", false, "istio's log at level info")
	flag.Parse()
	if given.out == "" {
		fatal("--out-dir is needed")
	}
	if err := run(given); err != nil {
		fatal(err.Error())
	}
}

// needEnvironment starts the process anew with what istio's ambient profile sets: istio reads its environment while
// its packages are initialised, before main.
func needEnvironment() {
	missing := false
	for name, value := range map[string]string{
		"PILOT_ENABLE_AMBIENT": "true", "CA_TRUSTED_NODE_ACCOUNTS": "istio-system/ztunnel",
		"UNSAFE_ENABLE_ADMIN_ENDPOINTS": "true",
	} {
		if _, ok := os.LookupEnv(name); !ok {
			missing = true
			_ = os.Setenv(name, value)
		}
	}
	if missing {
		self, err := os.Executable()
		if err == nil {
			err = syscall.Exec(self, os.Args, os.Environ())
		}
		fatal(err.Error())
	}
}

func run(given flags) error {
	logTo(given.verbose)
	for _, directory := range []string{given.out, given.store} {
		if directory == "" {
			continue
		}
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return err
		}
	}
	sources := given.objects
	if given.store != "" {
		sources = append(sources, given.store)
	}
	first, err := read(sources)
	if err != nil {
		return err
	}
	if given.ca == "" {
		given.ca = filepath.Join(given.out, "ca")
	}
	authority, err := openAuthority(given.ca, given.usualLife, given.longestLife)
	if err != nil {
		return err
	}
	root := authority.GetCAKeyCertBundle().GetRootCertPem()
	if err := replace(filepath.Join(given.out, "root-cert.pem"), root); err != nil {
		return err
	}
	client := kube.NewFakeClientWithVersion("33")
	api := &objects{client: client, store: given.store}
	issuer, err := openTokens(given.ca, api)
	if err != nil {
		return err
	}
	client.Kube().(*fake.Clientset).PrependReactor("create", "tokenreviews", issuer.review)
	desk := &control{objects: api, tokens: issuer, out: given.out, quit: make(chan struct{})}
	if err := desk.applyAll(first); err != nil {
		return err
	}
	return serve(given, client, authority, desk)
}

// sameClient gives istiod the client whose API the control interface writes.
func sameClient(client kube.Client) func(...runtime.Object) kube.Client {
	return func(...runtime.Object) kube.Client { return client }
}

func serve(given flags, client kube.Client, authority *ca.IstioCA, desk *control) error {
	addresses := map[string]string{}
	listen := func(name, address string) (net.Listener, error) {
		listener, err := net.Listen("tcp", address)
		if err == nil {
			addresses[name] = listener.Addr().String()
		}
		return listener, err
	}
	talk, err := listen("control", given.control)
	if err != nil {
		return err
	}
	secure, err := listen("listen", given.listen)
	if err != nil {
		return err
	}
	settings, err := mesh.ApplyMeshConfigDefaults(given.mesh)
	if err != nil {
		return err
	}
	options := xds.FakeOptions{KubeClientBuilder: sameClient(client), MeshConfig: settings}
	if given.plain != "" {
		options.ListenerBuilder = func() (net.Listener, error) { return listen("plain", given.plain) }
	}
	go func() { fatal(http.Serve(talk, desk.handler()).Error()) }()

	testing := &failer{}
	server := xds.NewFakeDiscoveryServer(testing, options)
	authenticators := []security.Authenticator{
		&authenticate.ClientCertAuthenticator{},
		kubeauth.NewKubeJWTAuthenticator(
			meshwatcher.NewTestWatcher(settings), client.Kube(), cluster, nil, nil),
	}
	server.Discovery.Authenticators = authenticators
	clusters := multicluster.NewFakeController()
	certificates, err := caserver.New(authority, given.longestLife, authenticators, clusters)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	clusters.Add(cluster, client, stop)
	client.RunAndWait(stop)

	config, err := serverTLS(authority)
	if err != nil {
		return err
	}
	life := keepalive.DefaultOption()
	life.MaxServerConnectionAge = given.maxAge
	over := grpc.NewServer(append(istiogrpc.ServerOptions(life, func(int64) {}), grpc.Creds(credentials.NewTLS(config)))...)
	server.Discovery.Register(over)
	certificates.Register(over)
	go func() { fatal(fmt.Sprint("TLS port: ", over.Serve(secure))) }()

	text, err := json.Marshal(addresses)
	if err != nil {
		return err
	}
	if err := replace(filepath.Join(given.out, "addresses.json"), text); err != nil {
		return err
	}
	desk.server.Store(server)
	<-desk.quit
	testing.end()
	close(stop)
	return nil
}

func logTo(verbose bool) {
	options := log.DefaultOptions()
	options.OutputPaths = []string{"stderr"}
	if !verbose {
		options.SetDefaultOutputLevel(log.OverrideScopeName, log.WarnLevel)
	}
	if err := log.Configure(options); err != nil {
		fatal(err.Error())
	}
}
