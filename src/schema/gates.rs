//! Feature gates of v1.36, as `feature-gates` flags name them: which there are, and what they are by default.
//!
//! kedge behaves as upstream does by default and has no switches: a flag that asks for the default is satisfied, another is refused.

/// On by default.
const ON: &str = "
APIResponseCompression APIServerIdentity APIServerTracing AggregatedDiscoveryRemoveBetaType AllowParsingUserUIDFromCertAuth
AllowServiceExternalIPs AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AtomicFIFO AuthorizeNodeWithSelectors
AuthorizePodWebsocketUpgradeCreatePermission AuthorizeWithSelectors BtreeWatchCache CPUManagerPolicyBetaOptions CPUManagerPolicyOptions
CRDObservedGenerationTracking CRDValidationRatcheting CSIServiceAccountTokenSecrets ClearingNominatedNodeNameAfterBinding
ClientsAllowCARotation ClientsAllowTLSCacheGC ComponentFlagz ComponentStatusz ConsistentListFromCache ConstrainedImpersonation
ContainerCheckpoint ContainerRestartRules CustomCPUCFSQuotaPeriod CustomResourceFieldSelectors DRAAdminAccess DRAConsumableCapacity
DRADeviceBindingConditions DRADeviceTaints DRAExtendedResource DRAPartitionableDevices DRAPrioritizedList DRAResourceClaimDeviceStatus
DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout DeclarativeValidation DeclarativeValidationBeta
DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency DisableAllocatorDualWrite DisableCPUQuotaWithExclusiveCPUs
DisableNodeKubeProxyVersion DynamicResourceAllocation EnvFiles ExecProbeTimeout ExtendWebSocketsToKubelet
ExternalServiceAccountTokenSigner GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority HPAConfigurableTolerance HostnameOverride
ImageMaximumGCAge ImageVolume InOrderInformers InOrderInformersBatchProcess InPlacePodLevelResourcesVerticalScaling
InPlacePodVerticalScaling InPlacePodVerticalScalingInitContainers InformerResourceVersion JobBackoffLimitPerIndex JobManagedBy
JobPodReplacementPolicy JobSuccessPolicy KubeletCgroupDriverFromCRI KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages
KubeletFineGrainedAuthz KubeletPSI KubeletPodResourcesDynamicResources KubeletPodResourcesGet KubeletPodResourcesListUseActivePods
KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders KubeletTracing ListFromCacheSnapshot LogarithmicScaleDown
MatchLabelKeysInPodAffinity MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge MultiCIDRServiceAllocator
MutableCSINodeAllocatableCount MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs MutatingAdmissionPolicy
NFTablesProxyMode NodeDeclaredFeatures NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap NominatedNodeNameForExpectation
OpenAPIEnums OpportunisticBatching OrderedNamespaceDeletion PLEGOnDemandRelist PodDeletionCost PodLevelResources PodLifecycleSleepAction
PodLifecycleSleepActionAllowZero PodObservedGenerationTracking PodReadyToStartContainersCondition PodSchedulingReadiness
PodTopologyLabelsAdmission PortForwardWebsockets PreferSameTrafficDistribution PreventStaticPodAPIReferences ProcMountType
RecoverVolumeExpansionFailure RecursiveReadOnlyMounts RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation
RelaxedServiceNameValidation ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile RemoteRequestHeaderUID
ResilientWatchCacheInitialization ResourceHealthStatus ResourceHealthStatusMessage RestartAllContainersOnContainerExits
RetryGenerateName RotateKubeletServerCertificate SELinuxChangePolicy SELinuxMountReadWriteOncePod SchedulerAsyncPreemption
SchedulerPopFromBackoffQ SchedulerQueueingHints SeparateTaintEvictionController ServiceAccountNodeAudienceRestriction
ServiceAccountTokenJTI ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo
ServiceCIDRStatusFieldWiping SidecarContainers SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet
StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
StatefulSetSemanticRevisionComparison StorageNamespaceIndex StorageVersionHash StreamingCollectionEncodingToJSON
StreamingCollectionEncodingToProtobuf StrictIPCIDRValidation StructuredAuthenticationConfiguration
StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics SupplementalGroupsPolicy
SystemdWatchdog TokenRequestServiceAccountUIDValidation TopologyManagerPolicyBetaOptions TopologyManagerPolicyOptions
TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO
UserNamespacesSupport VolumeAttributesClass WatchCacheInitializationPostStartHook WatchList WatchListClient WinDSR WinOverlay
WindowsGracefulNodeShutdown
";
/// Off by default.
const OFF: &str = "
APIServingWithRoutine AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests AllowOverwriteTerminationGracePeriodSeconds
AllowUnsafeMalformedObjectDeletion CBORServingAndStorage CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth
ChangeContainerStatusOnKubeletRestart ClientsAllowCBOR ClientsPreferCBOR CloudControllerManagerWatchBasedRoutesReconciliation
CloudControllerManagerWebhook ClusterTrustBundle ClusterTrustBundleProjection ConcurrentWatchObjectDecode ContainerStopSignals
ControllerManagerReleaseLeaderElectionLockOnExit CoordinatedLeaderElection CrossNamespaceVolumeDataSource DRADeviceTaintRules
DRAListTypeAttributes DRANodeAllocatableResources DRAResourcePoolStatus DRAWorkloadResourceClaims DeclarativeValidationTakeover
EventedPLEG GangScheduling GenericWorkload GitRepoVolumeDriver HPAScaleToZero ImageVolumeWithDigest
InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory KMSv1 KubeletInUserNamespace
KubeletRegistrationGetOnExistsOnly LocalStorageCapacityIsolationFSQuotaMonitoring ManifestBasedAdmissionControlConfig
MaxUnavailableStatefulSet MemoryQoS MutablePVNodeAffinity PersistentVolumeClaimUnusedSinceTime PodAndContainerStatsFromCRI
PodCertificateRequest PodLevelResourceManagers PodLogsQuerySplitStreams PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay
RuntimeClassInImageCriApi SELinuxMount SchedulerAsyncAPICalls SeparateCacheWatchRPC ShardedListAndWatch StorageCapacityScoring
StorageVersionAPI StorageVersionMigrator TaintTolerationComparisonOperators TopologyAwareWorkloadScheduling
TopologyManagerPolicyAlphaOptions UserNamespacesHostNetworkSupport VolumeLimitScaling WindowsCPUAndMemoryAffinity WindowsHostNetwork
WorkloadAwarePreemption WorkloadWithJob
";

/// Checks a flag's value: `Name=true,Other=false`.
///
/// Errors: a gate that v1.36 does not have, that is no switch, or that asks for what is not by default.
pub fn check(value: &str) -> Result<(), String> {
    for pair in value.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (name, wanted) = pair.split_once('=').ok_or_else(|| format!("missing bool value for {pair}"))?;
        let (name, wanted) = (name.trim(), wanted.trim());
        let wanted = match wanted.to_ascii_lowercase().as_str() {
            "true" | "t" | "1" => true,
            "false" | "f" | "0" => false,
            _ => return Err(format!("invalid value of {name}={wanted}, err: strconv.ParseBool: parsing {wanted:?}: invalid syntax")),
        };
        let has = |list: &str| list.split_ascii_whitespace().any(|n| n == name);
        let is = match name {
            "AllAlpha" => false,
            _ if has(ON) => true,
            _ if has(OFF) => false,
            _ => return Err(format!("unrecognized feature gate: {name}")),
        };
        if is != wanted {
            return Err(format!("feature gate {name} is {is} in kedge and cannot be set to {wanted}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_gate_may_be_asked_for_as_it_is() {
        assert_eq!(check("AnonymousAuthConfigurableEndpoints=true, HPAScaleToZero=false"), Ok(()));
        assert_eq!(check("Nonsense=true").unwrap_err(), "unrecognized feature gate: Nonsense");
        assert!(check("HPAScaleToZero=true").unwrap_err().contains("cannot be set to true"));
        assert_eq!(check("HPAScaleToZero").unwrap_err(), "missing bool value for HPAScaleToZero");
    }
}
