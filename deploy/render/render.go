// Package render renders the Helm chart and the kustomizations. Its tests check that the manifests are valid. It is a
// module of its own, since Helm and the types of Kubernetes are larger than the service.
//
//	CARILLON_TEST_UPDATE=1 go test -count=1 .
//
// writes the files that are generated from the chart: testdata, and the manifests of the kustomizations.
package render
