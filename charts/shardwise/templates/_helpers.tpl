{{/* The name of what this release owns: the release's own where it says "shardwise", else both. */}}
{{- define "shardwise.name" -}}
{{- if regexMatch "^[0-9]|[.]" .Release.Name }}
{{- fail (printf "the release is called %q: a Service is named after the release, so that it has to begin with a letter and to have no dot; choose another name" .Release.Name) }}
{{- end -}}
{{- if contains "shardwise" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-shardwise" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* What selects the operator's pods; never changes, because a Deployment's selector cannot. */}}
{{- define "shardwise.selector" -}}
app.kubernetes.io/name: shardwise
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{/* The labels of every object. A version may have a build after a "+", as Flux puts a commit there; a label may not. */}}
{{- define "shardwise.labels" -}}
app.kubernetes.io/name: shardwise
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | trunc 63 | trimAll "-_." | quote }}
app.kubernetes.io/part-of: shardwise
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_." }}
{{- range $key, $value := .Values.commonLabels }}
{{- if or (hasPrefix "app.kubernetes.io/" $key) (hasPrefix "helm.sh/" $key) }}
{{- fail (printf "commonLabels.%s: the chart has labels of that prefix itself; choose another" $key) }}
{{- end }}
{{ $key | quote }}: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* Those with a value's over them, but for what a selector or Helm reads: call with (list $ $labels). */}}
{{- define "shardwise.labelsWith" -}}
{{- $own := include "shardwise.labels" (index . 0) | fromYaml }}
{{- $fixed := pick $own "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/managed-by" }}
{{- mergeOverwrite $own (index . 1 | default dict) $fixed | toYaml }}
{{- end }}

{{- define "shardwise.tag" -}}
{{ .Values.images.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "shardwise.operatorImage" -}}
{{ .Values.images.operator | default (printf "%s/shardwise-operator:%s" .Values.images.registry (include "shardwise.tag" .)) }}
{{- end }}

{{/* The trainer's image for a platform: call with (list $ "cpu"). */}}
{{- define "shardwise.trainerImage" -}}
{{- $root := index . 0 }}{{ $platform := index . 1 -}}
{{ get $root.Values.images $platform | default (printf "%s/shardwise-trainer:%s-%s" $root.Values.images.registry (include "shardwise.tag" $root) $platform) }}
{{- end }}

{{/* The Secret with the token of the page of all jobs. */}}
{{- define "shardwise.pageSecret" -}}
{{ .Values.page.existingSecret | default (printf "%s-page" (include "shardwise.name" .)) }}
{{- end }}

{{/* The Secret with the operator's key. */}}
{{- define "shardwise.keySecret" -}}
{{ .Values.key.existingSecret | default (printf "%s-key" (include "shardwise.name" .)) }}
{{- end }}

{{/* What Pod Security "restricted" asks of a pod, and of a container. */}}
{{- define "shardwise.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.podSecurityContext }}
{{ toYaml . }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "shardwise.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The image and its security, of every container of the chart. */}}
{{- define "shardwise.container" -}}
image: {{ include "shardwise.operatorImage" . }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
securityContext: {{- include "shardwise.containerSecurity" . | nindent 2 }}
{{- end }}

{{/* A chart file's object with the chart's labels: call with (list $ "path"). */}}
{{- define "shardwise.fileObject" -}}
{{- $root := index . 0 }}
{{- $object := $root.Files.Get (index . 1) | fromYaml }}
{{- $labels := include "shardwise.labels" $root | fromYaml }}
{{- $_ := set $object.metadata "labels" (mergeOverwrite ($object.metadata.labels | default dict) $labels) }}
{{- toYaml $object }}
{{- end }}

{{/* What the pods of every job have, without what is empty. */}}
{{- define "shardwise.podDefaults" -}}
{{- $given := dict }}
{{- range $name, $value := .Values.trainingPods }}
{{- if $value }}{{ $_ := set $given $name $value }}{{ end }}
{{- end }}
{{- toJson $given }}
{{- end }}

{{/* A map with another one over it: maps are merged, anything else replaces, null takes a key out. Call with (list $map $over). */}}
{{- define "shardwise.overlaid" -}}
{{- $made := deepCopy (index . 0) }}
{{- range $key, $value := index . 1 }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $made $key }}
{{- else if kindIs "map" $value }}
{{- $below := ternary (get $made $key) dict (kindIs "map" (get $made $key)) }}
{{- $_ := set $made $key (include "shardwise.overlaid" (list $below $value) | fromJson) }}
{{- else }}
{{- $_ := set $made $key $value }}
{{- end }}
{{- end }}
{{- toJson $made }}
{{- end }}
