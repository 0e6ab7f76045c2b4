package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// netns names, on a pod, the file of its network namespace.
const netns = "ringway.test/netns"

// forward serves `portforward`: each request of the client is a stream for errors, then one for data. A client that
// first asks over a websocket is refused that (GET), as API servers before Kubernetes 1.30 do, and falls back to this.
func (o *objects) forward(answer http.ResponseWriter, request *http.Request) {
	pod := o.find("Pod", request)
	if pod == nil || pod.Metadata.Annotations[netns] == "" {
		http.Error(answer, "no such pod, or it has no network namespace", http.StatusNotFound)
		return
	}
	if _, err := httpstream.Handshake(request, answer, []string{"portforward.k8s.io"}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 2)
	accept := func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	}
	connection := spdy.NewResponseUpgrader().UpgradeResponse(answer, request, accept)
	if connection == nil {
		return
	}
	defer connection.Close()
	failures := map[string]httpstream.Stream{}
	for {
		select {
		case <-connection.CloseChan():
			return
		case stream := <-streams:
			of := stream.Headers()
			id := of.Get(corev1.PortForwardRequestIDHeader)
			if of.Get(corev1.StreamType) == corev1.StreamTypeError {
				failures[id] = stream
				continue
			}
			failure, ok := failures[id]
			delete(failures, id)
			port, err := strconv.ParseUint(of.Get(corev1.PortHeader), 10, 16)
			if !ok || err != nil {
				_ = stream.Reset()
				continue
			}
			go carry(pod.Metadata.Annotations[netns], uint16(port), stream, failure)
		}
	}
}

// carry moves bytes between the client's stream and a port of the pod's loopback until the pod's side ends.
func carry(namespace string, port uint16, data, failure httpstream.Stream) {
	defer failure.Close()
	defer data.Close()
	connection, err := dialWithin(namespace, port)
	if err != nil {
		fmt.Fprint(failure, err)
		return
	}
	defer connection.Close()
	go func() {
		_, _ = io.Copy(connection, data)
		_ = connection.(*net.TCPConn).CloseWrite()
	}()
	if _, err := io.Copy(data, connection); err != nil {
		fmt.Fprint(failure, err)
	}
}

func dialWithin(namespace string, port uint16) (net.Conn, error) {
	type dialled struct {
		connection net.Conn
		err        error
	}
	done := make(chan dialled, 1)
	go func() {
		// Never unlocked: the thread is of that namespace now, so it ends with this goroutine.
		runtime.LockOSThread()
		connection, err := enterAndDial(namespace, port)
		done <- dialled{connection, err}
	}()
	got := <-done
	return got.connection, got.err
}

func enterAndDial(namespace string, port uint16) (net.Conn, error) {
	file, err := os.Open(namespace)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("entering %s: %w", namespace, err)
	}
	return net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
}
