// Reads Kubernetes' documents and refuses what its API server would: fields that a kind does not have, or has otherwise.
package main

import (
	"bytes"
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, autoscalingv2.AddToScheme, corev1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	codec := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	text, err := os.ReadFile("/dev/stdin")
	if err != nil {
		panic(err)
	}
	read, failed := 0, false
	for _, document := range bytes.Split(append([]byte("\n"), text...), []byte("\n---\n")) {
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		if _, _, err := codec.Decode(document, nil, nil); err != nil {
			fmt.Fprintf(os.Stderr, "%v, in:\n%s\n", err, document)
			failed = true
		}
		read++
	}
	fmt.Println(read)
	if failed {
		os.Exit(1)
	}
}
