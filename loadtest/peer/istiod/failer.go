package main

import (
	"fmt"
	"os"
	"sync"

	"istio.io/istio/pkg/test"
)

// failer stands in for testing.T, which istio's FakeDiscoveryServer asks for: a fatal error ends the process.
type failer struct {
	mutex    sync.Mutex
	cleanups []func()
}

var _ test.Failer = &failer{}

func (f *failer) Fail()                             { f.Fatal("failed") }
func (f *failer) FailNow()                          { f.Fatal("failed") }
func (f *failer) Fatal(words ...any)                { fatal(fmt.Sprint(words...)) }
func (f *failer) Fatalf(format string, args ...any) { fatal(fmt.Sprintf(format, args...)) }
func (f *failer) Log(...any)                        {}
func (f *failer) Logf(string, ...any)               {}
func (f *failer) Helper()                           {}
func (f *failer) Skip(words ...any)                 { f.Fatal(words...) }

func (f *failer) TempDir() string {
	directory, err := os.MkdirTemp("", "istiod-peer")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = os.RemoveAll(directory) })
	return directory
}

func (f *failer) Cleanup(action func()) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.cleanups = append(f.cleanups, action)
}

// end runs what was left to be cleaned up, the newest first.
func (f *failer) end() {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for at := len(f.cleanups) - 1; at >= 0; at-- {
		f.cleanups[at]()
	}
	f.cleanups = nil
}

func fatal(text string) {
	fmt.Fprintln(os.Stderr, "istiod-peer:", text)
	os.Exit(1)
}
