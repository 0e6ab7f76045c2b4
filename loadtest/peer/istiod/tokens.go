package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"istio.io/istio/pkg/config/schema/gvr"
	"istio.io/istio/security/pkg/k8s/tokenreview"
)

const audience = "istio-ca"

// tokens issues service account tokens bound to pods, and reviews them, as the API server would. The key is kept
// with the CA's files: tokens outlive a restart.
type tokens struct {
	key     []byte
	objects *objects
}

// claims are those of a real token that a review looks at.
type claims struct {
	Audience   []string   `json:"aud"`
	Subject    string     `json:"sub"`
	Kubernetes kubernetes `json:"kubernetes.io"`
}

type kubernetes struct {
	Namespace string `json:"namespace"`
	Pod       struct {
		Name string `json:"name"`
		UID  string `json:"uid"`
	} `json:"pod"`
}

func openTokens(directory string, objects *objects) (*tokens, error) {
	path := filepath.Join(directory, "token-key")
	key, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		key = make([]byte, 32)
		_, _ = rand.Read(key)
		err = os.WriteFile(path, key, 0o600)
	}
	return &tokens{key: key, objects: objects}, err
}

// issue gives a token of the pod's service account, bound to the pod.
func (t *tokens) issue(pod *corev1.Pod) string {
	of := claims{Audience: []string{audience}, Subject: subject(pod)}
	of.Kubernetes.Namespace = pod.Namespace
	of.Kubernetes.Pod.Name, of.Kubernetes.Pod.UID = pod.Name, string(pod.UID)
	body, err := json.Marshal(of)
	if err != nil {
		fatal(err.Error())
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(body)
	return signed + "." + encode(t.sign(signed))
}

func (t *tokens) sign(text string) []byte {
	mac := hmac.New(sha256.New, t.key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

func subject(pod *corev1.Pod) string {
	return "system:serviceaccount:" + pod.Namespace + ":" + pod.Spec.ServiceAccountName
}

// review is the reactor of the fake API: a token is good if its signature is, and its pod is still that pod.
func (t *tokens) review(action k8stesting.Action) (bool, runtime.Object, error) {
	review := action.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
	pod, err := t.podOf(review.Spec.Token)
	if err != nil {
		review.Status.Error = err.Error()
		return true, review, nil
	}
	review.Status = authenticationv1.TokenReviewStatus{
		Authenticated: true,
		Audiences:     []string{audience},
		User: authenticationv1.UserInfo{
			Username: subject(pod),
			Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + pod.Namespace},
			Extra: map[string]authenticationv1.ExtraValue{
				tokenreview.PodNameKey: {pod.Name}, tokenreview.PodUIDKey: {string(pod.UID)},
			},
		},
	}
	return true, review, nil
}

func (t *tokens) podOf(token string) (*corev1.Pod, error) {
	signed, signature, ok := cutLast(token, ".")
	given, err := base64.RawURLEncoding.DecodeString(signature)
	if !ok || err != nil || !hmac.Equal(given, t.sign(signed)) {
		return nil, errors.New("the token wasn't issued here")
	}
	_, body, _ := strings.Cut(signed, ".")
	var of claims
	text, err := base64.RawURLEncoding.DecodeString(body)
	if err == nil {
		err = json.Unmarshal(text, &of)
	}
	if err != nil {
		return nil, err
	}
	pod, err := t.pod(of.Kubernetes.Namespace, of.Kubernetes.Pod.Name)
	if err != nil {
		return nil, err
	}
	if string(pod.UID) != of.Kubernetes.Pod.UID || subject(pod) != of.Subject {
		return nil, errors.New("the token's pod is another one now")
	}
	return pod, nil
}

func (t *tokens) pod(namespace, name string) (*corev1.Pod, error) {
	found, err := t.objects.tracker("").Get(gvr.Pod, namespace, name)
	if err != nil {
		return nil, err
	}
	return found.(*corev1.Pod), nil
}

func cutLast(text, at string) (before, after string, found bool) {
	if index := strings.LastIndex(text, at); index >= 0 {
		return text[:index], text[index+len(at):], true
	}
	return text, "", false
}
