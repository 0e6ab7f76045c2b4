package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"time"

	"istio.io/istio/security/pkg/pki/ca"
	"istio.io/istio/security/pkg/pki/util"
)

// rootLife is a year longer than the longest life of a workload's certificate that anyone asks for.
const rootLife = 10 * 365 * 24 * time.Hour

// openAuthority gives istio's own CA over the files of `directory`, which have the names of istio's secret
// `cacerts`: ca-cert.pem, ca-key.pem, root-cert.pem, and cert-chain.pem where the CA isn't the root itself.
// Without ca-cert.pem, a self-signed one is made there.
func openAuthority(directory string, usualLife, longestLife time.Duration) (*ca.IstioCA, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, err
	}
	at := func(name string) string { return filepath.Join(directory, name) }
	if _, err := os.Stat(at("ca-cert.pem")); errors.Is(err, os.ErrNotExist) {
		certificate, key, err := util.GenCertKeyFromOptions(util.CertOptions{
			TTL: rootLife, Org: "cluster.local", IsCA: true, IsSelfSigned: true, RSAKeySize: 2048, IsDualUse: true,
		})
		if err != nil {
			return nil, err
		}
		// ca-cert.pem last: where it is, all are.
		for _, file := range []struct {
			name string
			text []byte
		}{{"ca-key.pem", key}, {"root-cert.pem", certificate}, {"ca-cert.pem", certificate}} {
			if err := os.WriteFile(at(file.name), file.text, 0o600); err != nil {
				return nil, err
			}
		}
	}
	files := ca.SigningCAFileBundle{
		RootCertFile: at("root-cert.pem"), SigningCertFile: at("ca-cert.pem"), SigningKeyFile: at("ca-key.pem"),
	}
	if _, err := os.Stat(at("cert-chain.pem")); err == nil {
		files.CertChainFiles = []string{at("cert-chain.pem")}
	}
	options, err := ca.NewPluggedCertIstioCAOptions(files, usualLife, longestLife, 2048)
	if err != nil {
		return nil, err
	}
	return ca.NewIstioCA(options)
}

// serverTLS is as istiod's own secure port: a certificate of its CA; a client may show one of that CA too.
func serverTLS(authority *ca.IstioCA) (*tls.Config, error) {
	names := []string{
		"istiod.istio-system.svc", "istiod-remote.istio-system.svc", "istio-pilot.istio-system.svc",
		"istiod.istio-system", "istiod.istio-system.svc.cluster.local",
	}
	chain, key, err := authority.GenKeyCert(names, 365*24*time.Hour, false)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority.GetCAKeyCertBundle().GetRootCertPem()) {
		return nil, errors.New("the root certificate isn't PEM")
	}
	return &tls.Config{
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    roots,
		MinVersion:   tls.VersionTLS12,
	}, nil
}
