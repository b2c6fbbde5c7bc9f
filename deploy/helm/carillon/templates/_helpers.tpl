{{- define "carillon.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "carillon.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "carillon.labels" -}}
{{ include "carillon.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "carillon.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A number as it was written: YAML's numbers are floating point here, and 1000000 would be 1e+06. */}}
{{- define "carillon.value" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end }}

{{- define "carillon.variable" -}}
CARILLON_{{ . | upper | replace "-" "_" }}
{{- end }}

{{/* The store's usual port. */}}
{{- define "carillon.storePort" -}}
{{ .Values.networkPolicy.storePort | default (get (dict "mongodb" 27017 "postgres" 5432 "redis" 6379) .Values.store.kind) | int }}
{{- end }}

{{/* Combinations that can't work are refused, also where the schema is not looked at. */}}
{{- define "carillon.check" -}}
{{- if eq .Values.store.kind "sqlite" -}}
{{- if gt (int (default 1 .Values.replicas)) 1 -}}
{{- fail "replicas: SQLite allows one replica; for more, set store.kind to mongodb, postgres or redis" -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- fail "autoscaling.enabled: SQLite allows one replica; for more, set store.kind to mongodb, postgres or redis" -}}
{{- end -}}
{{- else if not .Values.store.secret.name -}}
{{- fail (printf "store.secret.name: name the Secret with the URL of the %s store" .Values.store.kind) -}}
{{- end -}}
{{- end }}
