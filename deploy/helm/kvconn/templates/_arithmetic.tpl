{{/* The bytes of a size such as 4GiB, 500GB or 64Mi. */}}
{{- define "kvconn.bytes" -}}
{{- $text := . | toString | trim -}}
{{- if not (regexMatch "^[0-9]+([kKMGT]i?)?B?$" $text) -}}
{{- fail (printf "%q is no size: want a whole number and a unit, such as 4GiB or 500GB" $text) -}}
{{- end -}}
{{- $n := regexFind "^[0-9]+" $text | int64 -}}
{{- $unit := regexFind "[kKMGT]i?" $text -}}
{{- $units := dict "" 1 "k" 1000 "K" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mul $n (index $units $unit | int64) -}}
{{- end -}}

{{/* The seconds of a time such as 25s or 1m30s, rounded up. */}}
{{- define "kvconn.seconds" -}}
{{- $text := . | toString | trim -}}
{{- if not (regexMatch "^([0-9]+(\\.[0-9]+)?(h|ms|m|s))+$" $text) -}}
{{- fail (printf "%q is no time: want such as 25s or 1m30s" $text) -}}
{{- end -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(h|ms|m|s)" $text -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $sum = addf $sum (mulf (float64 (regexFind "[0-9.]+" .)) (index (dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001) $unit)) -}}
{{- end -}}
{{- ceil $sum | int64 -}}
{{- end -}}

{{/* A number of bytes as a quantity of Kubernetes, in whole MiB, rounded up. */}}
{{- define "kvconn.quantity" -}}
{{- printf "%dMi" (div (add (. | int64) 1048575) 1048576) -}}
{{- end -}}

{{/*
The daemon's memory:
    hostBytes                                    the host tier, which is used in full
  + eventBytes                                   while a router has to catch up
  + object_index_bytes (1GiB)                    with a bucket: what is known of it,
  + object_uploads (4) x 32MiB                     objects that are being put together,
  + object_read_in_flight_bytes (64MiB)            and what is being fetched
  + resources.headroomBytes                      the program, and about 60 bytes a record on disk
*/}}
{{- define "kvconn.daemonMemory" -}}
{{- $d := .Values.daemon -}}
{{- $s := $d.settings -}}
{{- $sum := add (include "kvconn.bytes" $d.hostBytes | int64) (include "kvconn.bytes" $d.eventBytes | int64) (include "kvconn.bytes" $d.resources.headroomBytes | int64) -}}
{{- if $d.object -}}
{{- $sum = add $sum (include "kvconn.bytes" (default "1GiB" $s.object_index_bytes) | int64) -}}
{{- $sum = add $sum (mul (default 4 $s.object_uploads | int64) 33554432) -}}
{{- $sum = add $sum (include "kvconn.bytes" (default "64MiB" $s.object_read_in_flight_bytes) | int64) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Requests and limits of memory are equal: a daemon that is killed for memory costs every engine of its node its cache. */}}
{{- define "kvconn.resources" -}}
{{- $memory := index . 0 -}}
{{- $r := index . 1 -}}
{{- $computed := dict "requests" (dict "cpu" $r.cpuRequest "memory" $memory) "limits" (dict "memory" $memory) -}}
{{- toYaml (mergeOverwrite $computed (deepCopy $r.override)) -}}
{{- end -}}
