{{/* The container's environment, called with the merged values. */}}
{{- define "ringway.environment" -}}
{{ include "ringway.variable" (list "CA_ADDRESS" (.caAddress | default (include "ringway.istiod" .))) }}
{{ include "ringway.variable" (list "XDS_ADDRESS" (.xdsAddress | default (include "ringway.istiod" .))) }}
{{- if .logAsJson }}
{{ include "ringway.variable" (list "LOG_FORMAT" "json") }}
{{- end }}
{{- with .network }}
{{ include "ringway.variable" (list "NETWORK" .) }}
{{- end }}
{{ include "ringway.variable" (list "RUST_LOG" .logLevel) }}
{{ include "ringway.variable" (list "RUST_BACKTRACE" "1") }}
{{ include "ringway.variable" (list "ISTIO_META_CLUSTER_ID" (.multiCluster.clusterName | default "Kubernetes")) }}
{{ include "ringway.variable" (list "INPOD_ENABLED" "true") }}
{{ include "ringway.variable" (list "TERMINATION_GRACE_PERIOD_SECONDS" .terminationGracePeriodSeconds) }}
{{- range $pair := list
  (list "POD_NAME" "metadata.name")
  (list "POD_NAMESPACE" "metadata.namespace")
  (list "NODE_NAME" "spec.nodeName")
  (list "INSTANCE_IP" "status.podIP")
  (list "SERVICE_ACCOUNT" "spec.serviceAccountName") }}
- name: {{ index $pair 0 }}
  valueFrom:
    fieldRef:
      fieldPath: {{ index $pair 1 }}
{{- end }}
{{- range $name, $value := .meshConfig.defaultConfig.proxyMetadata }}
{{ include "ringway.variable" (list $name $value) }}
{{- end }}
{{ include "ringway.cpu" (list "ZTUNNEL_CPU_LIMIT" "limits.cpu") }}
{{- $resources := .resources | default dict }}
{{- if (get $resources "limits" | default dict).cpu }}
{{ include "ringway.cpu" (list "ZTUNNEL_RESOURCE_CPU_LIMIT" "limits.cpu") }}
{{- end }}
{{- if (get $resources "requests" | default dict).cpu }}
{{ include "ringway.cpu" (list "ZTUNNEL_RESOURCE_CPU_REQUEST" "requests.cpu") }}
{{- end }}
{{- include "ringway.own" . }}
{{- range $name, $value := .env }}
{{ include "ringway.variable" (list $name $value) }}
{{- end }}
{{- if .peerCaCrl.enabled }}
{{ include "ringway.variable" (list "CRL_PATH" "/var/run/secrets/istio/crl/ca-crl.pem") }}
{{- end }}
{{- end -}}

{{/* A variable that holds the container's CPUs, rounded up. */}}
{{- define "ringway.cpu" -}}
- name: {{ index . 0 }}
  valueFrom:
    resourceFieldRef:
      resource: {{ index . 1 }}
      divisor: "1"
{{- end -}}

{{/* What `ringway` sets, where `env` and the proxy metadata don't set the same variable themselves. */}}
{{- define "ringway.own" -}}
{{- $own := dict -}}
{{- range $key, $value := .ringway.settings -}}
  {{- $_ := set $own (printf "RINGWAY_%s" (regexReplaceAll "([A-Z])" $key "_${1}" | upper)) $value -}}
{{- end -}}
{{- $named := dict "workers" "ZTUNNEL_WORKER_THREADS" "socks5" "UNSTABLE_ENABLE_SOCKS5"
  "dnsCapture" "ISTIO_META_DNS_CAPTURE" -}}
{{- range $key, $variable := $named -}}
  {{- $_ := set $own $variable (get $.ringway $key) -}}
{{- end -}}
{{- $set := mergeOverwrite (dict)
  (deepCopy (.meshConfig.defaultConfig.proxyMetadata | default dict))
  (deepCopy (.env | default dict)) -}}
{{- range $variable, $value := $own -}}
  {{- if and (ne (toString $value) "") (not (hasKey $set $variable)) }}
{{ include "ringway.variable" (list $variable $value) }}
  {{- end -}}
{{- end -}}
{{- end -}}
