{{- define "kvconn.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "kvconn.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "kvconn.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kvconn.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvconn.router" -}}
{{- printf "%s-router" (include "kvconn.fullname" .) -}}
{{- end -}}

{{/*
The name of what the release has in a namespace: (list $ NAMESPACE SUFFIX). Releases of one name, each in a namespace of its own,
may share a namespace of engines. There the name begins with the release's namespace, which a dot ends: no namespace has one.
`kvconnd config k8s` names claims by the same rule.
*/}}
{{- define "kvconn.nameIn" -}}
{{- $top := index . 0 -}}
{{- $suffix := index . 2 -}}
{{- $name := printf "%s-%s" (include "kvconn.fullname" $top) $suffix -}}
{{- if ne (index . 1) $top.Release.Namespace -}}
{{- $name = printf "%s.%s" $top.Release.Namespace $name -}}
{{- end -}}
{{- if gt (len $name) 63 -}}
{{- $begin := trunc (int (sub 51 (len $suffix))) $name | trimAll "-." -}}
{{- $name = printf "%s-%s-%s" $begin (sha256sum $name | trunc 10) $suffix -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* What never changes of a pod: a workload's selector cannot. (list $ "daemon") */}}
{{- define "kvconn.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ include "kvconn.name" $top }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "kvconn.labels" -}}
{{- $top := index . 0 -}}
{{ include "kvconn.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name ($top.Chart.Version | replace "+" "_") }}
{{- with $top.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kvconn.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* What the Pod Security Standard "restricted" asks of a pod and of a container. */}}
{{- define "kvconn.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int64 .Values.user }}
runAsGroup: {{ int64 .Values.group }}
fsGroup: {{ int64 .Values.group }}
# A store has thousands of files: they are looked at only if the folder is another group's.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- with .Values.seLinuxOptions }}
seLinuxOptions: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "kvconn.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* A setting's value as YAML. Helm has numbers as floating point, in which a large one would be 5e+11. */}}
{{- define "kvconn.value" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- else if kindIs "bool" . -}}{{ . }}
{{- else -}}{{ . | toString | quote }}
{{- end -}}
{{- end -}}

{{- define "kvconn.tokenSecret" -}}
{{- default (printf "%s-http" (include "kvconn.fullname" .)) .Values.daemon.httpTokenSecret.name -}}
{{- end -}}

{{- define "kvconn.routerTokenSecret" -}}
{{- default (include "kvconn.router" .) .Values.router.tokenSecret.name -}}
{{- end -}}
