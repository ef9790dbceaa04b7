{{- define "berth.selector" -}}
app.kubernetes.io/name: berth
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "berth.metadata" -}}
name: {{ .Release.Name }}
labels:
  {{- include "berth.selector" . | nindent 2 }}
{{- end }}

{{- /* A value as text. Helm reads numbers of a values file as floats, and prints those from 1000000 on as 1e+06. */}}
{{- define "berth.text" -}}
{{ if kindIs "float64" . }}{{ toJson . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* The threads for 2, 0.5 or 500m cores: whole, and at least 1. */}}
{{- define "berth.threads" -}}
{{- $cores := include "berth.text" . }}
{{- if hasSuffix "m" $cores }}
{{- $cores = divf (trimSuffix "m" $cores) 1000 }}
{{- end }}
{{- max 1 (ceil $cores) }}
{{- end }}

{{- define "berth.claim" -}}
{{ .Values.storage.claim | default .Release.Name }}
{{- end }}

{{- define "berth.tenantsSecret" -}}
{{ if .Values.tenants.file }}{{ .Release.Name }}-tenants{{ else }}{{ .Values.tenants.secret }}{{ end }}
{{- end }}

{{- define "berth.scaled" -}}
{{ if ne .Values.autoscaling.kind "none" }}true{{ end }}
{{- end }}

{{- define "berth.check" -}}
{{- $v := .Values }}
{{- if not (has $v.autoscaling.kind (list "none" "hpa" "keda")) }}
{{- fail (printf "autoscaling.kind: %s is not none, hpa or keda" $v.autoscaling.kind) }}
{{- end }}
{{- if and $v.storage.sessions (not $v.storage.enabled) }}{{ fail "storage.sessions requires storage.enabled" }}{{ end }}
{{- if and $v.storage.sessions (or (gt (int $v.replicas) 1) (include "berth.scaled" .)) }}
{{- fail "storage.sessions requires replicas: 1 and no autoscaling: one server at a time may use the folder" }}
{{- end }}
{{- if and (not $v.insecure) (not (and $v.tls.secret (or $v.tenants.secret $v.tenants.file))) }}
{{- if and $v.tls.secret $v.tls.clientCertificates }}
{{- fail "the network could read the metrics without a token, although tls.clientCertificates is set: set tenants.secret or tenants.file too; or insecure=true" }}
{{- end }}
{{- fail "the network would reach the server without TLS or without credentials: set tls.secret, and tenants.secret or tenants.file; or insecure=true" }}
{{- end }}
{{- if and $v.tls.clientCertificates (not $v.tls.secret) }}{{ fail "tls.clientCertificates requires tls.secret" }}{{ end }}
{{- if and $v.tenants.secret $v.tenants.file }}{{ fail "tenants.secret and tenants.file exclude each other" }}{{ end }}
{{- end }}

{{- define "berth.flags" -}}
{{- $v := .Values }}
{{- if $v.model.path }}
--model={{ $v.model.path }}
{{- end }}
--listen=0.0.0.0:8600
--metrics_listen=0.0.0.0:8601
--health_listen=0.0.0.0:8603
{{- if $v.tls.secret }}
--tls_cert=/etc/berth-tls/tls.crt
--tls_key=/etc/berth-tls/tls.key
{{- if $v.tls.clientCertificates }}
--tls_client_ca=/etc/berth-tls/ca.crt
{{- end }}
{{- end }}
{{- if $v.insecure }}
--insecure=true
{{- end }}
{{- if or $v.tenants.secret $v.tenants.file }}
--tenants=/etc/berth-tenants/tenants.json
{{- end }}
--threads={{ include "berth.threads" $v.cpus }}
--drain_grace={{ include "berth.text" $v.drainSeconds }}s
--packed_weights={{ if $v.storage.enabled }}/data/packed{{ else }}none{{ end }}
{{- if $v.storage.sessions }}
--session_dir=/data/sessions
{{- end }}
{{- range $name, $value := $v.flags }}
--{{ $name }}={{ include "berth.text" $value }}
{{- end }}
{{- end }}
