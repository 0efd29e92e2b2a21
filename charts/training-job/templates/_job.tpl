{{/* The labels of every job. Its own go over them, but for those by which Helm and a person find the release's jobs. */}}
{{- define "training-job.labels" -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_." }}
{{- $fixed := dict "app.kubernetes.io/name" "training-job" "app.kubernetes.io/instance" .Release.Name }}
{{- $_ := set $fixed "app.kubernetes.io/managed-by" .Release.Service }}
{{- mergeOverwrite (dict "helm.sh/chart" $chart) (.Values.metadata.labels | default dict) $fixed | toYaml }}
{{- end }}

{{/* One job: call with (list $ "name" spec). */}}
{{- define "training-job.job" -}}
{{- $root := index . 0 }}{{ $name := index . 1 }}{{ $spec := index . 2 -}}
{{- if gt (len $name) 40 }}
{{- fail (printf "the job would be called %q, which has %d characters; a job's name has at most 40, because the hosts are named after it: take a shorter release name" $name (len $name)) }}
{{- end }}
{{- with $root.Values.metadata.namespace }}
{{- if ne . $root.Release.Namespace }}
{{- fail (printf "metadata.namespace is %s and the release's namespace is %s: give helm `-n %s`, or take it out" . $root.Release.Namespace .) }}
{{- end }}
{{- end -}}
apiVersion: {{ $root.Values.apiVersion }}
kind: {{ $root.Values.kind }}
metadata:
  name: {{ $name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels: {{- include "training-job.labels" $root | nindent 4 }}
  {{- with $root.Values.metadata.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec: {{- toYaml $spec | nindent 2 }}
{{- end }}

{{/* The spec of one job of the sweep, as YAML: call with (list spec differences "name"). */}}
{{- define "training-job.varied" -}}
{{- $spec := deepCopy (index . 0) }}{{ $name := index . 2 -}}
{{- if dig "pod" "directory" "" $spec }}
{{- $_ := set $spec.pod "directory" (printf "%s/%s" $spec.pod.directory $name) }}
{{- end }}
{{- if dig "training" "checkpoint" "path" "" $spec }}
{{- $_ := set $spec.training.checkpoint "path" (printf "%s/%s" $spec.training.checkpoint.path $name) }}
{{- end }}
{{- toYaml (mergeOverwrite $spec (deepCopy (index . 1))) }}
{{- end }}
