{{/* What a schema cannot say. */}}
{{- define "kvconn.check" -}}
{{- $d := .Values.daemon -}}
{{- $own := dict "dir" "storage.storePath" "socket" "storage.runPath" "socket_group" "group" "http" "daemon.port" "http_remote" "daemon.port" "http_token" "daemon.httpTokenSecret" "host_bytes" "daemon.hostBytes" "max_bytes" "daemon.maxBytes" "event_bytes" "daemon.eventBytes" "object" "daemon.object" "object_ca" "daemon.objectCAConfigMap" "key_file" "daemon.keySecret" "router" "router.enabled" -}}
{{- range $key, $_ := $d.settings -}}
{{- if hasKey $own $key -}}
{{- fail (printf "daemon.settings.%s: set %s, which the chart needs for more than this setting" $key (index $own $key)) -}}
{{- end -}}
{{- end -}}
{{- $own = dict "http" "router.port" "token" "router.tokenSecret" "engine_key" "router.engineKeySecret" "node_token" "daemon.httpTokenSecret" "index_bytes" "router.indexBytes" "drain_timeout" "router.drainTimeout" "drain_delay" "router.drainDelay" "ranks" "router.ranks" "rank" "router.ranks" "discovery" "router.discovery" "discover" "router.discovery" -}}
{{- range $key, $_ := .Values.router.settings -}}
{{- if hasKey $own $key -}}
{{- fail (printf "router.settings.%s: set %s, which the chart needs for more than this setting" $key (index $own $key)) -}}
{{- end -}}
{{- end -}}
{{- if and (ne .Values.storage.kind "hostPath") .Values.storage.prepare.enabled -}}
{{- fail "storage.prepare is for storage.kind hostPath: with local the kubelet gives the folders to the group" -}}
{{- end -}}
{{- if gt (mul 2 (include "kvconn.seconds" .Values.router.drainDelay | int64)) (include "kvconn.seconds" .Values.router.drainTimeout | int64) -}}
{{- fail (printf "router.drainDelay %s is more than half of router.drainTimeout %s" .Values.router.drainDelay .Values.router.drainTimeout) -}}
{{- end -}}
{{- if eq .Values.storage.storePath .Values.storage.runPath -}}
{{- fail "storage.storePath and storage.runPath are the same folder: engines would see the store" -}}
{{- end -}}
{{- end -}}
