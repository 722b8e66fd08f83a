// Clients in Go against a running cluster: a controller-runtime manager (CRD, webhooks, leader election) and client-go's informers
// (protobuf, WatchList). Run by tests/clients/go.sh; each step that does not come true within a minute ends the program.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

const patience = time.Minute

func main() {
	log.SetLogger(zap.New(zap.UseDevMode(true), zap.WriteTo(os.Stderr)))
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must("read KUBECONFIG", err)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, client := range []func(context.Context, *rest.Config){watchers, manager} {
		client(ctx, rest.CopyConfig(config))
	}
}

func must(what string, err error) {
	if err != nil {
		fmt.Printf("FAILED: %s: %v\n", what, err)
		os.Exit(1)
	}
}

// until waits for a condition that is looked at again and again.
func until(ctx context.Context, what string, holds func() (bool, error)) {
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		ok, err := holds()
		if ok {
			fmt.Println("ok:", what)
			return
		}
		last = err
	}
	must(what, fmt.Errorf("not within %s (%v)", patience, last))
}
