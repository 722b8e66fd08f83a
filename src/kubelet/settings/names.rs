//! The names of all settings of upstream's kubelet v1.36.2.

/// Flags: cmd/kubelet/app/options, component-base's logs/api/v1/options.go and verflag, for Linux.
pub(super) const FLAGS: &str = "
address allowed-unsafe-sysctls anonymous-auth application-metrics-count-limit authentication-token-webhook
authentication-token-webhook-cache-ttl authorization-mode authorization-webhook-cache-authorized-ttl
authorization-webhook-cache-unauthorized-ttl boot-id-file bootstrap-kubeconfig cert-dir cgroup-driver cgroup-root
cgroups-per-qos client-ca-file cloud-provider cluster-dns cluster-domain config config-dir container-hints
container-log-max-files container-log-max-size container-runtime-endpoint containerd containerd-namespace
contention-profiling cpu-cfs-quota cpu-cfs-quota-period cpu-manager-policy cpu-manager-policy-options
cpu-manager-reconcile-period enable-controller-attach-detach enable-debugging-handlers enable-load-reader
enable-server enforce-node-allocatable event-burst event-qps event-storage-age-limit event-storage-event-limit
eviction-hard eviction-max-pod-grace-period eviction-minimum-reclaim eviction-pressure-transition-period eviction-soft
eviction-soft-grace-period exit-on-lock-contention experimental-allocatable-ignore-eviction experimental-mounter-path
fail-cgroupv1 fail-swap-on feature-gates file-check-frequency global-housekeeping-interval hairpin-mode
healthz-bind-address healthz-port help hostname-override housekeeping-interval http-check-frequency
image-credential-provider-bin-dir image-credential-provider-config image-gc-high-threshold image-gc-low-threshold
image-service-endpoint kernel-memcg-notification kube-api-burst kube-api-content-type kube-api-qps kube-reserved
kube-reserved-cgroup kubeconfig kubelet-cgroups local-storage-capacity-isolation lock-file log-cadvisor-usage
log-flush-frequency log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream
logging-format machine-id-file make-iptables-util-chains manifest-url manifest-url-header max-housekeeping-interval
max-open-files max-pods maximum-dead-containers maximum-dead-containers-per-container memory-manager-policy
minimum-container-ttl-duration minimum-image-ttl-duration node-ip node-labels node-status-max-images
node-status-update-frequency oom-score-adj pod-cidr pod-manifest-path pod-max-pids pods-per-core port
protect-kernel-defaults provider-id qos-reserved read-only-port register-node register-with-taints registry-burst
registry-qps reserved-cpus reserved-memory resolv-conf root-dir rotate-certificates rotate-server-certificates runonce
runtime-cgroups runtime-request-timeout seccomp-default serialize-image-pulls storage-driver-buffer-duration
storage-driver-db storage-driver-host storage-driver-password storage-driver-secure storage-driver-table
storage-driver-user streaming-connection-idle-timeout sync-frequency system-cgroups system-reserved
system-reserved-cgroup tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file topology-manager-policy
topology-manager-policy-options topology-manager-scope v version vmodule volume-plugin-dir volume-stats-agg-period
";

/// Fields of KubeletConfiguration v1beta1 by their paths: k8s.io/kubelet/config/v1beta1/types.go and the structs it
/// embeds.
pub(super) const FIELDS: &str = "
address allowedUnsafeSysctls authentication.anonymous.enabled authentication.webhook.cacheTTL
authentication.webhook.enabled authentication.x509.clientCAFile authorization.mode
authorization.webhook.cacheAuthorizedTTL authorization.webhook.cacheUnauthorizedTTL cgroupDriver cgroupRoot
cgroupsPerQOS clusterDNS clusterDomain configMapAndSecretChangeDetectionStrategy containerLogMaxFiles
containerLogMaxSize containerLogMaxWorkers containerLogMonitorInterval containerRuntimeEndpoint contentType
cpuCFSQuota cpuCFSQuotaPeriod cpuManagerPolicy cpuManagerPolicyOptions cpuManagerReconcilePeriod
crashLoopBackOff.maxContainerRestartPeriod enableContentionProfiling enableControllerAttachDetach
enableDebugFlagsHandler enableDebuggingHandlers enableProfilingHandler enableServer enableSystemLogHandler
enableSystemLogQuery enforceNodeAllocatable eventBurst eventRecordQPS evictionHard evictionMaxPodGracePeriod
evictionMinimumReclaim evictionPressureTransitionPeriod evictionSoft evictionSoftGracePeriod failCgroupV1 failSwapOn
featureGates fileCheckFrequency hairpinMode healthzBindAddress healthzPort httpCheckFrequency
imageGCHighThresholdPercent imageGCLowThresholdPercent imageMaximumGCAge imageMinimumGCAge
imagePullCredentialsVerificationPolicy imageServiceEndpoint iptablesDropBit iptablesMasqueradeBit
kernelMemcgNotification kubeAPIBurst kubeAPIQPS kubeletCgroups kubeReserved kubeReservedCgroup
localStorageCapacityIsolation logging.flushFrequency logging.format logging.options.json.infoBufferSize
logging.options.json.splitStream logging.options.text.infoBufferSize logging.options.text.splitStream
logging.verbosity logging.vmodule makeIPTablesUtilChains maxOpenFiles maxParallelImagePulls maxPods
memoryManagerPolicy memoryReservationPolicy memorySwap.swapBehavior memoryThrottlingFactor
mergeDefaultEvictionSettings nodeLeaseDurationSeconds nodeStatusMaxImages nodeStatusReportFrequency
nodeStatusUpdateFrequency oomScoreAdj podCIDR podLogsDir podPidsLimit podsPerCore port
preloadedImagesVerificationAllowlist protectKernelDefaults providerID qosReserved readOnlyPort registerNode
registerWithTaints registryBurst registryPullQPS reservedMemory reservedSystemCPUs resolvConf rotateCertificates
runOnce runtimeRequestTimeout seccompDefault serializeImagePulls serverTLSBootstrap showHiddenMetricsForVersion
shutdownGracePeriod shutdownGracePeriodByPodPriority shutdownGracePeriodCriticalPods singleProcessOOMKill
staticPodPath staticPodURL staticPodURLHeader streamingConnectionIdleTimeout syncFrequency systemCgroups
systemReserved systemReservedCgroup tlsCertFile tlsCipherSuites tlsCurvePreferences tlsMinVersion tlsPrivateKeyFile
topologyManagerPolicy topologyManagerPolicyOptions topologyManagerScope tracing.endpoint
tracing.samplingRatePerMillion userNamespaces.idsPerPod volumePluginDir volumeStatsAggPeriod
";
