package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// wire notes which requests a client makes and which forms it gets.
type wire struct {
	next                           http.RoundTripper
	protobuf, json, lists, streams atomic.Int64
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := w.next.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusOK && r.Method == http.MethodGet {
		switch {
		case strings.HasPrefix(answer.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf"):
			w.protobuf.Add(1)
		default:
			w.json.Add(1)
		}
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			w.streams.Add(1)
		} else if r.URL.Query().Get("watch") == "" {
			w.lists.Add(1)
		}
	}
	return answer, err
}

// informers: a shared informer over protobuf starts by a streaming list, sees a change and a deletion; one of metadata only, too.
func informersOf(ctx context.Context, config *rest.Config, seen *wire) {
	client, err := kubernetes.NewForConfig(config)
	must("make a client", err)
	factory := informers.NewSharedInformerFactory(client, 0)
	maps := factory.Core().V1().ConfigMaps()
	deleted := make(chan string, 16)
	_, err = maps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(object any) {
		if cm, ok := object.(*corev1.ConfigMap); ok && cm.Name == "from-go" {
			deleted <- cm.Data["k"]
		}
	}})
	must("hear of config maps", err)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if seen.streams.Load() == 0 || seen.lists.Load() != 0 || seen.json.Load() != 0 || seen.protobuf.Load() == 0 {
		must("a streaming list over protobuf", fmt.Errorf("streams %d, lists %d, protobuf %d, json %d", seen.streams.Load(),
			seen.lists.Load(), seen.protobuf.Load(), seen.json.Load()))
	}
	fmt.Println("ok: an informer starts by one streaming list over protobuf")
	api := client.CoreV1().ConfigMaps("default")
	made, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "from-go"}, Data: map[string]string{"k": "1"}}, metav1.CreateOptions{})
	must("create", err)
	made.Data["k"] = "2"
	_, err = api.Update(ctx, made, metav1.UpdateOptions{})
	must("update", err)
	until(ctx, "the informer sees the change", func() (bool, error) {
		cm, err := maps.Lister().ConfigMaps("default").Get("from-go")
		return err == nil && cm.Data["k"] == "2", err
	})
	must("delete", api.Delete(ctx, "from-go", metav1.DeleteOptions{}))
	select {
	case last := <-deleted:
		if last != "2" {
			must("the last state of what was deleted", fmt.Errorf("%q", last))
		}
		fmt.Println("ok: the informer sees the deletion with the last state")
	case <-ctx.Done():
		must("the informer sees the deletion", ctx.Err())
	}
	bare, err := metadata.NewForConfig(config)
	must("make a metadata client", err)
	meta := metadatainformer.NewSharedInformerFactory(bare, 0)
	nodes := meta.ForResource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	meta.Start(ctx.Done())
	meta.WaitForCacheSync(ctx.Done())
	until(ctx, "an informer of metadata knows the nodes", func() (bool, error) {
		all, err := nodes.Lister().List(labels.Everything())
		return len(all) > 0, err
	})
}

func informersConfig(config *rest.Config) (*rest.Config, *wire) {
	seen := &wire{}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		seen.next = next
		return seen
	})
	return config, seen
}

func watchers(ctx context.Context, config *rest.Config) {
	config, seen := informersConfig(config)
	informersOf(ctx, config, seen)
}
