{{/* The name of everything; called with the merged values. */}}
{{- define "ringway.name" -}}
{{ .resourceName | default "ztunnel" }}
{{- end -}}

{{/* Labels of every object and of the pods. */}}
{{- define "ringway.labels" -}}
app.kubernetes.io/name: ztunnel
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/part-of: "istio"
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* Labels that cluster-wide objects and the network policy have besides. */}}
{{- define "ringway.owner" -}}
app: ztunnel
install.operator.istio.io/owning-resource: {{ .ownerName | default "unknown" }}
{{- end -}}

{{/* Annotations of an object: the user's, and the revision. */}}
{{- define "ringway.annotations" -}}
{{- $annotations := deepCopy (.annotations | default dict) -}}
{{- with .revision }}{{ $_ := set $annotations "istio.io/rev" . }}{{ end -}}
{{- toYaml $annotations -}}
{{- end -}}

{{/* Helm reads numbers of a values file as floating point: a large whole one must not become 1.6e+07. */}}
{{- define "ringway.text" -}}
{{- if kindIs "float64" . -}}
{{- if eq . (floor .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else }}{{ . }}{{ end -}}
{{- end -}}

{{/* One environment variable, called with (list NAME VALUE). */}}
{{- define "ringway.variable" -}}
- name: {{ index . 0 }}
  value: {{ include "ringway.text" (index . 1) | quote }}
{{- end -}}

{{/* Resources without entries that are null or empty. */}}
{{- define "ringway.resources" -}}
{{- $kept := dict -}}
{{- range $side := list "limits" "requests" -}}
  {{- $entries := dict -}}
  {{- range $name, $value := get ($ | default dict) $side | default dict -}}
    {{- if $value }}{{ $_ := set $entries $name $value }}{{ end -}}
  {{- end -}}
  {{- if $entries }}{{ $_ := set $kept $side $entries }}{{ end -}}
{{- end -}}
{{- toYaml $kept -}}
{{- end -}}

{{/* The image, called with (dict "values" $values "root" $). */}}
{{- define "ringway.image" -}}
{{- $image := .values.image | default "ringway" -}}
{{- if contains "/" $image -}}
{{ $image }}
{{- else -}}
{{- with .values.hub }}{{ . }}/{{ end }}{{ $image -}}
:{{ include "ringway.text" (.values.tag | default .root.Chart.AppVersion) }}
{{- with .values.variant }}-{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Where istiod is. */}}
{{- define "ringway.istiod" -}}
istiod{{ with .revision }}-{{ . }}{{ end }}.{{ .istioNamespace }}.svc:15012
{{- end -}}
