//go:build long

package render_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/apps"
	appsv1 "k8s.io/kubernetes/pkg/apis/apps/v1"
	appsrules "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	autoscalingv2 "k8s.io/kubernetes/pkg/apis/autoscaling/v2"
	autoscalingrules "k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	corerules "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	networkingv1 "k8s.io/kubernetes/pkg/apis/networking/v1"
	networkingrules "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	policyv1 "k8s.io/kubernetes/pkg/apis/policy/v1"
	policyrules "k8s.io/kubernetes/pkg/apis/policy/validation"
)

// server decodes manifests as an API server does, which sets defaults.
var server = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apps.AddToScheme, appsv1.AddToScheme, autoscaling.AddToScheme, autoscalingv2.AddToScheme, core.AddToScheme,
		corev1.AddToScheme, networking.AddToScheme, networkingv1.AddToScheme, policy.AddToScheme, policyv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme).UniversalDecoder()
}()

// validate checks manifests by the rules of an API server, but for the types that are an extension of it.
func validate(manifests string) (problems []error) {
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.Contains(text, "apiVersion: monitoring.coreos.com/") {
			continue
		}
		object, kind, err := server.Decode([]byte(text), nil, nil)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if o := object.(meta.Object); o.GetNamespace() == "" && kind.Kind != "Namespace" {
			o.SetNamespace("default")
		}
		var found field.ErrorList
		switch o := object.(type) {
		case *apps.Deployment:
			found = appsrules.ValidateDeployment(o, corerules.PodValidationOptions{})
		case *apps.StatefulSet:
			found = appsrules.ValidateStatefulSet(o, appsrules.StatefulSetValidationOptions{}, corerules.PodValidationOptions{})
		case *autoscaling.HorizontalPodAutoscaler:
			found = autoscalingrules.ValidateHorizontalPodAutoscaler(o,
				autoscalingrules.HorizontalPodAutoscalerSpecValidationOptions{MinReplicasLowerBound: 1})
		case *core.Namespace:
			found = corerules.ValidateNamespace(o)
		case *core.Secret:
			found = corerules.ValidateSecret(o)
		case *core.Service:
			if o.Spec.ClusterIP != "" { // which the server copies before
				o.Spec.ClusterIPs = []string{o.Spec.ClusterIP}
			}
			found = corerules.ValidateServiceCreate(o)
		case *core.ServiceAccount:
			found = corerules.ValidateServiceAccount(o)
		case *networking.NetworkPolicy:
			found = networkingrules.ValidateNetworkPolicy(o, networkingrules.NetworkPolicyValidationOptions{})
		case *policy.PodDisruptionBudget:
			found = policyrules.ValidatePodDisruptionBudget(o, policyrules.PodDisruptionBudgetValidationOptions{})
		default:
			problems = append(problems, fmt.Errorf("there are no rules for a %s", kind))
		}
		for _, problem := range found {
			problems = append(problems, fmt.Errorf("%s: %w", kind.Kind, problem))
		}
	}
	return problems
}

// TestAccepted: an API server accepts the manifests of each store, and the kustomizations.
func TestAccepted(t *testing.T) {
	all := map[string]string{}
	for _, store := range []string{"sqlite", "postgres", "mongodb", "redis"} {
		text, err := os.ReadFile(filepath.Join("testdata", store+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		all[store] = string(text)
	}
	for _, folder := range []string{"base", "sqlite", "example"} {
		all["kustomize/"+folder] = kustomize(t, filepath.Join("../kustomize", folder))
	}
	for name, manifests := range all {
		for _, problem := range validate(manifests) {
			t.Errorf("%s: %v", name, problem)
		}
	}
}

// TestNotAccepted: the rules find a required field that is missing, and a value that is none of those allowed.
func TestNotAccepted(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "postgres.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, changed, want string }{
		{"        - name: carillon\n          image:", "        - image:", "Deployment: spec.template.spec.containers[0].name: Required value"},
		{"          image: \"ghcr.io/carillon-scheduler/carillon:0.0.0\"\n", "", "Deployment: spec.template.spec.containers[0].image: Required value"},
		{"  maxReplicas: 8\n", "", "HorizontalPodAutoscaler: spec.maxReplicas"},
		{"imagePullPolicy: IfNotPresent", "imagePullPolicy: Sometimes", "containers[0].imagePullPolicy: Unsupported value"},
		{"whenUnsatisfiable: ScheduleAnyway", "whenUnsatisfiable: Schedule", "whenUnsatisfiable: Unsupported value"},
		{"    type: RollingUpdate\n    rollingUpdate:\n      maxSurge: 1\n      maxUnavailable: 0\n", "    type: AllAtOnce\n",
			"Deployment: spec.strategy: Unsupported value"},
		{"protocol: TCP", "protocol: QUIC", "NetworkPolicy: spec.ingress[0].ports[0].protocol: Unsupported value"},
	} {
		manifests := strings.Replace(string(text), c.old, c.changed, 1)
		if manifests == string(text) {
			t.Errorf("the manifests have no %s", c.old)
		}
		if problems := fmt.Sprint(validate(manifests)); !strings.Contains(problems, c.want) {
			t.Errorf("%s instead of %s: %s, want %s", c.changed, c.old, problems, c.want)
		}
	}
}
