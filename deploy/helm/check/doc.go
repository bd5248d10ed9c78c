// Package check has the tests of the Helm chart: that Helm's own library renders and lints it, that the Kubernetes API's
// types take every object, that pods keep the Pod Security Standards, and that kvconnd takes the settings.
//
// It is a module of its own, so that the modules of Helm and Kubernetes are not among those of the daemon.
package check
