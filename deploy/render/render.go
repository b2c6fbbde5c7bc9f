// Package render renders the Helm chart and the kustomizations, and checks that what they make is valid, by its tests.
// It is a module of its own, since Helm and the types of Kubernetes are larger than the service.
//
//	CARILLON_TEST_UPDATE=1 go test -count=1 .
//
// writes the files that are made from the chart: testdata, and the manifests of the kustomizations.
package render
