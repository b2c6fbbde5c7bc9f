{{/* The pod, which is the same in a Deployment and in a StatefulSet. */}}
{{- define "carillon.pod" -}}
{{- $sqlite := eq .Values.store.kind "sqlite" -}}
{{- $secrets := deepCopy .Values.secrets -}}
{{- if not $sqlite -}}
{{- $_ := set $secrets "store" .Values.store.secret -}}
{{- end -}}
metadata:
  labels:
    {{- include "carillon.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "carillon.fullname" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  terminationGracePeriodSeconds: {{ int .Values.terminationGracePeriodSeconds }}
  containers:
    - name: carillon
      image: {{ include "carillon.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        - --listen=:8080
        - --metrics-listen=:9090
        - --log-format=json
        {{- range $name, $value := .Values.options }}
        - {{ printf "--%s=%s" $name (include "carillon.value" $value) | quote }}
        {{- end }}
        {{- range $name, $files := .Values.files }}
        {{- $paths := list }}
        {{- range $i, $file := $files }}
        {{- $paths = append $paths (printf "/run/secrets/carillon/%s/%d-%s" $name $i $file.key) }}
        {{- end }}
        - {{ printf "--%s=%s" $name (join "," $paths) | quote }}
        {{- end }}
      env:
        {{- /* Variables, so that other commands in the container find the store too. */}}
        {{- if $sqlite }}
        - name: CARILLON_STORE
          value: sqlite:/data/carillon.db
        {{- end }}
        {{- range $name, $_ := $secrets }}
        - name: {{ include "carillon.variable" $name }}_FILE
          value: /run/secrets/carillon/{{ $name }}/value
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - name: http
          containerPort: 8080
        - name: metrics
          containerPort: 9090
      # The program answers once it has reached the store, which takes --store-wait at most.
      startupProbe:
        httpGet:
          path: /healthz
          port: metrics
        periodSeconds: 2
        failureThreshold: 90
      livenessProbe:
        httpGet:
          path: /healthz
          port: metrics
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet:
          path: /readyz
          port: metrics
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      lifecycle:
        # The cluster still sends requests for a moment after it has decided to stop a replica.
        preStop:
          sleep:
            seconds: 5
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        {{- if $sqlite }}
        - name: data
          mountPath: /data
        {{- end }}
        {{- range $name, $_ := $secrets }}
        - name: secret-{{ $name }}
          mountPath: /run/secrets/carillon/{{ $name }}
          readOnly: true
        {{- end }}
        {{- range $name, $_ := .Values.files }}
        - name: files-{{ $name }}
          mountPath: /run/secrets/carillon/{{ $name }}
          readOnly: true
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- range $name, $secret := $secrets }}
    - name: secret-{{ $name }}
      secret:
        secretName: {{ $secret.name }}
        defaultMode: 0440
        items:
          - key: {{ $secret.key }}
            path: value
    {{- end }}
    {{- range $name, $files := .Values.files }}
    - name: files-{{ $name }}
      projected:
        defaultMode: 0440
        sources:
          {{- range $i, $file := $files }}
          - secret:
              name: {{ $file.name }}
              items:
                - key: {{ $file.key }}
                  path: {{ $i }}-{{ $file.key }}
          {{- end }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if not (kindIs "invalid" .Values.topologySpreadConstraints) }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- else if not $sqlite }}
  topologySpreadConstraints:
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - topologyKey: {{ . }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      matchLabelKeys: [pod-template-hash]
      labelSelector:
        matchLabels:
          {{- include "carillon.selector" $ | nindent 10 }}
    {{- end }}
  {{- end }}
{{- end }}
