package render_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// strict decodes manifests into the types of Kubernetes, and refuses unknown and repeated fields.
var strict = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apps.AddToScheme, autoscaling.AddToScheme, core.AddToScheme, monitoring.AddToScheme, networking.AddToScheme, policy.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}()

func decode(t *testing.T, manifests string) (objects []runtime.Object) {
	t.Helper()
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		object, _, err := strict.Decode([]byte(text), nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		objects = append(objects, object)
	}
	return objects
}

func kinds(objects []runtime.Object) (all []string) {
	for _, o := range objects {
		all = append(all, o.GetObjectKind().GroupVersionKind().Kind)
	}
	slices.Sort(all)
	return all
}

func kustomize(t *testing.T, folder string) string {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		t.Fatal(err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pods returns the pod of the workload, the number of its replicas (nil if it is left open) and its selector.
func pods(t *testing.T, objects []runtime.Object) (pod core.PodTemplateSpec, replicas *int32, selector *meta.LabelSelector) {
	t.Helper()
	n := 0
	for _, o := range objects {
		switch w := o.(type) {
		case *apps.Deployment:
			pod, replicas, selector = w.Spec.Template, w.Spec.Replicas, w.Spec.Selector
			n++
		case *apps.StatefulSet:
			pod, replicas, selector = w.Spec.Template, w.Spec.Replicas, w.Spec.Selector
			n++
			if replicas == nil || *replicas > 1 {
				t.Error("a StatefulSet, which is for SQLite, has one replica at most")
			}
		}
	}
	if n != 1 || len(pod.Spec.Containers) != 1 {
		t.Fatalf("there are %d workloads with %d containers, want one with one", n, len(pod.Spec.Containers))
	}
	return pod, replicas, selector
}

// consistent checks that the objects fit each other, which their schemas don't check.
func consistent(t *testing.T, objects []runtime.Object) {
	t.Helper()
	pod, replicas, own := pods(t, objects)
	container := pod.Spec.Containers[0]
	selects := func(kind string, s *meta.LabelSelector) {
		t.Helper()
		selector, err := meta.LabelSelectorAsSelector(s)
		if err != nil || selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
			t.Errorf("%s: the selector %v does not select the pods with %v (%v)", kind, selector, pod.Labels, err)
		}
	}
	selects("the workload", own)
	for _, s := range pod.Spec.TopologySpreadConstraints {
		selects("the spread", s.LabelSelector)
	}
	var portNames []string
	for _, p := range container.Ports {
		portNames = append(portNames, p.Name)
	}
	var services []*core.Service
	names := map[string]bool{}
	for _, o := range objects {
		o := o.(meta.Object)
		kind := o.(runtime.Object).GetObjectKind().GroupVersionKind().Kind
		if problems := validation.IsDNS1035Label(o.GetName()); len(problems) > 0 {
			t.Errorf("%s %s: %v", kind, o.GetName(), problems)
		}
		if names[kind+"/"+o.GetName()] {
			t.Errorf("%s %s is there twice", kind, o.GetName())
		}
		names[kind+"/"+o.GetName()] = true
		for key, value := range o.GetLabels() {
			if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
				t.Errorf("%s: label %s: %v", kind, key, problems)
			}
		}
		if s, ok := o.(*core.Service); ok {
			services = append(services, s)
		}
	}
	if !names["ServiceAccount/"+pod.Spec.ServiceAccountName] {
		t.Errorf("there is no ServiceAccount %s", pod.Spec.ServiceAccountName)
	}
	for _, o := range objects {
		switch o := o.(type) {
		case *core.Service:
			selects("the service", &meta.LabelSelector{MatchLabels: o.Spec.Selector})
			for _, p := range o.Spec.Ports {
				if !slices.Contains(portNames, p.TargetPort.StrVal) {
					t.Errorf("the service's port %s leads to %s, which the container does not have", p.Name, &p.TargetPort)
				}
			}
		case *apps.StatefulSet:
			if !names["Service/"+o.Spec.ServiceName] {
				t.Errorf("there is no service %s", o.Spec.ServiceName)
			}
			for _, c := range o.Spec.VolumeClaimTemplates {
				pod.Spec.Volumes = append(pod.Spec.Volumes, core.Volume{Name: c.Name})
			}
		case *policy.PodDisruptionBudget:
			selects("the budget", o.Spec.Selector)
		case *networking.NetworkPolicy:
			selects("the network policy", &o.Spec.PodSelector)
			for _, rule := range o.Spec.Ingress {
				for _, p := range rule.Ports {
					if !slices.Contains(portNames, p.Port.StrVal) {
						t.Errorf("the network policy names the port %s", p.Port)
					}
				}
			}
		case *autoscaling.HorizontalPodAutoscaler:
			if replicas != nil {
				t.Error("the number of replicas is fixed, beside an autoscaler")
			}
			if target := o.Spec.ScaleTargetRef; !names[target.Kind+"/"+target.Name] {
				t.Errorf("the autoscaler is for %s %s, which is not there", target.Kind, target.Name)
			}
			if o.Spec.MinReplicas == nil || *o.Spec.MinReplicas > o.Spec.MaxReplicas || len(o.Spec.Metrics) != 1 {
				t.Errorf("the autoscaler: %+v", o.Spec)
			}
		case *monitoring.ServiceMonitor:
			selector, err := meta.LabelSelectorAsSelector(&o.Spec.Selector)
			if err != nil {
				t.Fatal(err)
			}
			var found []string
			for _, s := range services {
				if selector.Matches(labels.Set(s.Labels)) {
					for _, p := range s.Spec.Ports {
						found = append(found, p.Name)
					}
				}
			}
			if !slices.Equal(found, []string{o.Spec.Endpoints[0].Port}) {
				t.Errorf("the monitor of %s finds the ports %q", o.Spec.Endpoints[0].Port, found)
			}
		}
	}

	var volumes, mounted []string
	for _, v := range pod.Spec.Volumes {
		volumes = append(volumes, v.Name)
		if problems := validation.IsDNS1123Label(v.Name); len(problems) > 0 {
			t.Errorf("volume %s: %v", v.Name, problems)
		}
	}
	for _, m := range container.VolumeMounts {
		mounted = append(mounted, m.Name)
	}
	slices.Sort(volumes)
	slices.Sort(mounted)
	if !slices.Equal(volumes, mounted) {
		t.Errorf("the volumes %q are not what is mounted, %q", volumes, mounted)
	}
	for name, probe := range map[string]*core.Probe{
		"/healthz": container.LivenessProbe, "/readyz": container.ReadinessProbe,
	} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != name || !slices.Contains(portNames, probe.HTTPGet.Port.StrVal) {
			t.Errorf("the probe of %s is %+v", name, probe)
		}
	}
	if container.StartupProbe == nil || container.StartupProbe.PeriodSeconds*container.StartupProbe.FailureThreshold < 120 {
		t.Errorf("a replica that waits for its store is killed: %+v", container.StartupProbe)
	}
	// 25 s is the default of --shutdown-timeout.
	if grace := pod.Spec.TerminationGracePeriodSeconds; container.Lifecycle.PreStop.Sleep == nil ||
		*grace < container.Lifecycle.PreStop.Sleep.Seconds+25+5 {
		t.Errorf("a replica is killed after %d s, before it has stopped", *grace)
	}
	if container.Resources.Requests.Cpu().IsZero() || container.Resources.Limits.Memory().IsZero() {
		t.Errorf("the resources are %v", container.Resources)
	}
	if _, fixed := container.Resources.Limits[core.ResourceCPU]; fixed {
		t.Error("the processors are limited, so callbacks of a burst are late")
	}
}

// hardened checks the pod against the "restricted" standard of Kubernetes, and a few more rules.
func hardened(t *testing.T, objects []runtime.Object) {
	t.Helper()
	pod, _, _ := pods(t, objects)
	container := pod.Spec.Containers[0]
	yes, no, user, group := true, false, int64(65532), core.FSGroupChangeOnRootMismatch
	wantPod := &core.PodSecurityContext{
		RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, FSGroup: &user, FSGroupChangePolicy: &group,
		SeccompProfile: &core.SeccompProfile{Type: core.SeccompProfileTypeRuntimeDefault},
	}
	if !reflect.DeepEqual(pod.Spec.SecurityContext, wantPod) {
		t.Errorf("the pod's security context is %+v", pod.Spec.SecurityContext)
	}
	wantContainer := &core.SecurityContext{
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &core.Capabilities{Drop: []core.Capability{"ALL"}},
	}
	if !reflect.DeepEqual(container.SecurityContext, wantContainer) {
		t.Errorf("the container's security context is %+v", container.SecurityContext)
	}
	if token := pod.Spec.AutomountServiceAccountToken; token == nil || *token {
		t.Error("the pod gets a token of the cluster, which it does not need")
	}
	if links := pod.Spec.EnableServiceLinks; links == nil || *links {
		t.Error("the container gets a variable for each service")
	}
	if pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC {
		t.Error("the pod shares the node's namespaces")
	}
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil {
			t.Errorf("the volume %s is a folder of the node", v.Name)
		}
		if v.Secret != nil && *v.Secret.DefaultMode != 0o440 || v.Projected != nil && *v.Projected.DefaultMode != 0o440 {
			t.Errorf("others can read the volume %s", v.Name)
		}
	}
	for _, e := range container.Env {
		if strings.Contains(e.Value, "://") && strings.Contains(e.Value, "@") {
			t.Errorf("the variable %s has a secret", e.Name)
		}
	}
}
