{{/*
Merges the values into the dictionary `into`, last wins: the defaults, the profile, the platform, the globals, what the
user set. To be called with (dict "into" $values "root" $), each template for itself, so that the order in which Helm
renders them doesn't matter. A compatibilityVersion changes nothing of a node proxy.
*/}}
{{- define "ringway.values" -}}
{{- $given := .root.Values -}}
{{- $global := $given.global | default dict -}}
{{- $known := .root.Files.Get "files/profiles.yaml" | fromYaml -}}
{{- $_ := mustMergeOverwrite .into (deepCopy $given._defaults) -}}
{{- range $kind := list "profile" "platform" -}}
  {{- $name := coalesce (get $given $kind) (get $global $kind) -}}
  {{- if $name -}}
    {{- $choices := get $known $kind -}}
    {{- if not (hasKey $choices $name) -}}
      {{- fail (printf "unknown %s %q: there are %s" $kind $name (keys $choices | sortAlpha | join ", ")) -}}
    {{- end -}}
    {{- $_ := mustMergeOverwrite $.into (deepCopy (get $choices $name)) -}}
  {{- end -}}
{{- end -}}
{{- $_ := mustMergeOverwrite .into (deepCopy $global) (omit (deepCopy $given) "_defaults") -}}
{{- end -}}
