package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	jsonpatch "gomodules.xyz/jsonpatch/v2"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	group     = "clients.kedge.test"
	finalizer = group + "/done"
	port      = 19443
)

var kind = schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Widget"}

func widget(name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	object.SetNamespace("default")
	object.SetName(name)
	return object
}

// manager: a definition, webhooks, leader election, a reconciler with a finalizer, an owned object and a status.
func manager(ctx context.Context, config *rest.Config) {
	must("know definitions", apiextensionsv1.AddToScheme(scheme.Scheme))
	direct, err := client.New(config, client.Options{})
	must("make a client", err)
	host := os.Getenv("WEBHOOK_HOST")
	certificates, ca := certificate(host)
	defer os.RemoveAll(certificates)
	definition, hooks := objects(host, ca)
	for _, object := range append(hooks, definition) {
		_ = direct.Delete(ctx, object.DeepCopyObject().(client.Object))
	}
	until(ctx, "the definition is made", func() (bool, error) {
		err := direct.Create(ctx, definition)
		return err == nil, err
	})
	until(ctx, "the definition is established", func() (bool, error) {
		err := direct.Get(ctx, client.ObjectKeyFromObject(definition), definition)
		for _, condition := range definition.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return true, nil
			}
		}
		return false, err
	})
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(running, config, host, certificates) }()
	for _, hook := range hooks {
		must("create a webhook", direct.Create(ctx, hook))
	}
	until(ctx, "the manager leads", func() (bool, error) {
		lease := &coordinationv1.Lease{}
		err := direct.Get(ctx, client.ObjectKey{Namespace: "default", Name: group}, lease)
		return err == nil && ptr.Deref(lease.Spec.HolderIdentity, "") != "", err
	})
	life(ctx, direct)
	stop()
	must("the manager ends in peace", <-ended)
	for _, object := range append(hooks, definition) {
		must("clean up", client.IgnoreNotFound(direct.Delete(ctx, object)))
	}
	fmt.Println("ok: the manager ended")
}

// life: what a user of the controller sees.
func life(ctx context.Context, direct client.Client) {
	bad := widget("bad")
	_ = unstructured.SetNestedField(bad.Object, "forbidden", "spec", "color")
	until(ctx, "the validating webhook refuses", func() (bool, error) {
		err := direct.Create(ctx, bad.DeepCopy())
		if err == nil {
			_ = direct.Delete(ctx, bad.DeepCopy())
		}
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "no such color"), err
	})
	good := widget("good")
	_ = unstructured.SetNestedField(good.Object, int64(3), "spec", "size")
	must("create a widget", direct.Create(ctx, good))
	if color, _, _ := unstructured.NestedString(good.Object, "spec", "color"); color != "blue" {
		must("the mutating webhook's default", fmt.Errorf("color %q", color))
	}
	fmt.Println("ok: the mutating webhook fills in a default")
	until(ctx, "the reconciler writes the status", func() (bool, error) {
		err := direct.Get(ctx, client.ObjectKeyFromObject(good), good)
		size, _, _ := unstructured.NestedInt64(good.Object, "status", "size")
		return size == 3, err
	})
	owned := &corev1.ConfigMap{}
	must("the owned object", direct.Get(ctx, client.ObjectKey{Namespace: "default", Name: "good"}, owned))
	must("delete the widget", direct.Delete(ctx, good))
	until(ctx, "finalizer done, widget and its config map gone", func() (bool, error) {
		first := direct.Get(ctx, client.ObjectKeyFromObject(good), good)
		second := direct.Get(ctx, client.ObjectKeyFromObject(owned), owned)
		return apierrors.IsNotFound(first) && apierrors.IsNotFound(second), errors.Join(first, second)
	})
}

func run(ctx context.Context, config *rest.Config, host, certificates string) error {
	made, err := ctrl.NewManager(config, ctrl.Options{
		LeaderElection: true, LeaderElectionID: group, LeaderElectionNamespace: "default", LeaderElectionReleaseOnCancel: true,
		Metrics:       metrics.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: host, Port: port, CertDir: certificates}),
	})
	if err != nil {
		return err
	}
	made.GetWebhookServer().Register("/mutate", &webhook.Admission{Handler: admission.HandlerFunc(
		func(_ context.Context, request admission.Request) admission.Response {
			if strings.Contains(string(request.Object.Raw), `"color"`) {
				return admission.Allowed("")
			}
			if !strings.Contains(string(request.Object.Raw), `"spec"`) {
				return admission.Patched("a default", webhookPatch("/spec", map[string]any{"color": "blue"}))
			}
			return admission.Patched("a default", webhookPatch("/spec/color", "blue"))
		})})
	made.GetWebhookServer().Register("/validate", &webhook.Admission{Handler: admission.HandlerFunc(
		func(_ context.Context, request admission.Request) admission.Response {
			if strings.Contains(string(request.Object.Raw), `"forbidden"`) {
				return admission.Denied("no such color")
			}
			return admission.Allowed("").WithWarnings("looked at")
		})})
	err = ctrl.NewControllerManagedBy(made).Named("widgets").For(widget("")).Owns(&corev1.ConfigMap{}).
		Complete(&reconciler{Client: made.GetClient()})
	if err != nil {
		return err
	}
	return made.Start(ctx)
}

type reconciler struct{ client.Client }

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := widget("")
	if err := r.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !object.GetDeletionTimestamp().IsZero() {
		if controllerutil.RemoveFinalizer(object, finalizer) {
			return ctrl.Result{}, r.Update(ctx, object)
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(object, finalizer) {
		if err := r.Update(ctx, object); err != nil {
			return ctrl.Result{}, err
		}
	}
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: request.Namespace, Name: request.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, owned, func() error {
		owned.Data = map[string]string{"made": "by the manager"}
		return controllerutil.SetControllerReference(object, owned, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	size, _, _ := unstructured.NestedInt64(object.Object, "spec", "size")
	_ = unstructured.SetNestedField(object.Object, size, "status", "size")
	return ctrl.Result{}, r.Status().Update(ctx, object)
}

// objects are the definition and the webhooks' configurations.
func objects(host string, ca []byte) (*apiextensionsv1.CustomResourceDefinition, []client.Object) {
	text, number := apiextensionsv1.JSONSchemaProps{Type: "string"}, apiextensionsv1.JSONSchemaProps{Type: "integer"}
	part := func(properties map[string]apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties}
	}
	whole := part(map[string]apiextensionsv1.JSONSchemaProps{
		"spec":   part(map[string]apiextensionsv1.JSONSchemaProps{"color": text, "size": number}),
		"status": part(map[string]apiextensionsv1.JSONSchemaProps{"size": number}),
	})
	definition := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &whole},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
	url := func(path string) admissionv1.WebhookClientConfig {
		return admissionv1.WebhookClientConfig{URL: ptr.To(fmt.Sprintf("https://%s:%d%s", host, port, path)), CABundle: ca}
	}
	rules := []admissionv1.RuleWithOperations{{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{"widgets"}},
	}}
	none := admissionv1.SideEffectClassNone
	return definition, []client.Object{
		&admissionv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "mutate." + group},
			Webhooks: []admissionv1.MutatingWebhook{{
				Name: "mutate." + group, ClientConfig: url("/mutate"), Rules: rules, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			}},
		},
		&admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "validate." + group},
			Webhooks: []admissionv1.ValidatingWebhook{{
				Name: "validate." + group, ClientConfig: url("/validate"), Rules: rules, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			}},
		},
	}
}

// certificate makes a folder with a key and a certificate that is its own authority.
func certificate(host string) (string, []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must("make a key", err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "webhooks"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP(host)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must("make a certificate", err)
	private, err := x509.MarshalECPrivateKey(key)
	must("write a key", err)
	folder, err := os.MkdirTemp("", "webhooks")
	must("make a folder", err)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	must("write a certificate", os.WriteFile(filepath.Join(folder, "tls.crt"), ca, 0o600))
	must("write a key", os.WriteFile(filepath.Join(folder, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600))
	return folder, ca
}

func webhookPatch(path string, value any) jsonpatch.Operation {
	return jsonpatch.NewOperation("add", path, value)
}
