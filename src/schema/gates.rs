//! Feature gates of v1.36, as `feature-gates` flags name them: which there are, and what they are by default.
//!
//! kedge behaves as upstream does by default and has no switches: a flag that asks for what kedge does is satisfied,
//! another is refused. So is a flag that asks for what is not there, whatever upstream's default.

/// On by default.
const ON: &str = "
APIResponseCompression AggregatedDiscoveryRemoveBetaType AllowParsingUserUIDFromCertAuth AllowServiceExternalIPs
AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AtomicFIFO AuthorizeNodeWithSelectors
AuthorizePodWebsocketUpgradeCreatePermission AuthorizeWithSelectors BtreeWatchCache CRDObservedGenerationTracking
CRDValidationRatcheting CSIServiceAccountTokenSecrets ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation
ClientsAllowTLSCacheGC ConsistentListFromCache ContainerRestartRules CustomCPUCFSQuotaPeriod
CustomResourceFieldSelectors DeclarativeValidation DeclarativeValidationBeta DeploymentReplicaSetTerminatingReplicas
DetectCacheInconsistency DisableAllocatorDualWrite DisableNodeKubeProxyVersion EnvFiles ExecProbeTimeout
ExtendWebSocketsToKubelet HPAConfigurableTolerance HostnameOverride ImageMaximumGCAge ImageVolume InOrderInformers
InOrderInformersBatchProcess InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScaling
InPlacePodVerticalScalingInitContainers InformerResourceVersion JobBackoffLimitPerIndex JobManagedBy
JobPodReplacementPolicy JobSuccessPolicy KubeletCgroupDriverFromCRI KubeletCrashLoopBackOffMax
KubeletEnsureSecretPulledImages KubeletFineGrainedAuthz KubeletPodResourcesGet KubeletPodResourcesListUseActivePods
KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders ListFromCacheSnapshot LogarithmicScaleDown
MatchLabelKeysInPodAffinity MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge
MultiCIDRServiceAllocator MutableCSINodeAllocatableCount MutablePodResourcesForSuspendedJobs
MutableSchedulingDirectivesForSuspendedJobs MutatingAdmissionPolicy NFTablesProxyMode NodeDeclaredFeatures
NodeInclusionPolicyInPodTopologySpread NodeSwap NominatedNodeNameForExpectation OpenAPIEnums OrderedNamespaceDeletion
PLEGOnDemandRelist PodDeletionCost PodLevelResources PodLifecycleSleepAction PodLifecycleSleepActionAllowZero
PodObservedGenerationTracking PodReadyToStartContainersCondition PodSchedulingReadiness PodTopologyLabelsAdmission
PortForwardWebsockets PreferSameTrafficDistribution PreventStaticPodAPIReferences ProcMountType
RecoverVolumeExpansionFailure RecursiveReadOnlyMounts RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation
RelaxedServiceNameValidation ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile RemoteRequestHeaderUID
ResilientWatchCacheInitialization RestartAllContainersOnContainerExits RetryGenerateName RotateKubeletServerCertificate
SchedulerAsyncPreemption SchedulerPopFromBackoffQ SeparateTaintEvictionController ServiceAccountNodeAudienceRestriction
ServiceAccountTokenJTI ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation
ServiceAccountTokenPodNodeInfo ServiceCIDRStatusFieldWiping SidecarContainers SizeBasedListCostEstimate
StaleControllerConsistencyDaemonSet StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet
StaleControllerConsistencyStatefulSet StatefulSetSemanticRevisionComparison StorageNamespaceIndex StorageVersionHash
StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf StrictIPCIDRValidation
StructuredAuthenticationConfiguration StructuredAuthenticationConfigurationEgressSelector
StructuredAuthenticationConfigurationJWKSMetrics SupplementalGroupsPolicy TokenRequestServiceAccountUIDValidation
TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation UnlockWhileProcessingFIFO UserNamespacesSupport
VolumeAttributesClass WatchCacheInitializationPostStartHook WatchList WatchListClient
";
/// On by default upstream, and not here: what they switch on does not exist in kedge. A flag that wants one is refused.
const ABSENT: &str = "
APIServerIdentity APIServerTracing CPUManagerPolicyBetaOptions CPUManagerPolicyOptions ComponentFlagz ComponentStatusz
ConstrainedImpersonation ContainerCheckpoint DRAAdminAccess DRAConsumableCapacity DRADeviceBindingConditions
DRADeviceTaints DRAExtendedResource DRAPartitionableDevices DRAPrioritizedList DRAResourceClaimDeviceStatus
DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout DisableCPUQuotaWithExclusiveCPUs
DynamicResourceAllocation ExternalServiceAccountTokenSigner GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority
KubeletPSI KubeletPodResourcesDynamicResources KubeletTracing NodeLogQuery OpportunisticBatching ResourceHealthStatus
ResourceHealthStatusMessage SELinuxChangePolicy SELinuxMountReadWriteOncePod SchedulerQueueingHints SystemdWatchdog
TopologyManagerPolicyBetaOptions TopologyManagerPolicyOptions UnknownVersionInteroperabilityProxy WinDSR WinOverlay
WindowsGracefulNodeShutdown
";
/// Off by default.
const OFF: &str = "
APIServingWithRoutine AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests
AllowOverwriteTerminationGracePeriodSeconds AllowUnsafeMalformedObjectDeletion CBORServingAndStorage
CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth ChangeContainerStatusOnKubeletRestart ClientsAllowCBOR
ClientsPreferCBOR CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook ClusterTrustBundle
ClusterTrustBundleProjection ConcurrentWatchObjectDecode ContainerStopSignals
ControllerManagerReleaseLeaderElectionLockOnExit CoordinatedLeaderElection CrossNamespaceVolumeDataSource
DRADeviceTaintRules DRAListTypeAttributes DRANodeAllocatableResources DRAResourcePoolStatus DRAWorkloadResourceClaims
DeclarativeValidationTakeover EventedPLEG GangScheduling GenericWorkload GitRepoVolumeDriver HPAScaleToZero
ImageVolumeWithDigest InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory KMSv1
KubeletInUserNamespace KubeletRegistrationGetOnExistsOnly LocalStorageCapacityIsolationFSQuotaMonitoring
ManifestBasedAdmissionControlConfig MaxUnavailableStatefulSet MemoryQoS MutablePVNodeAffinity
PersistentVolumeClaimUnusedSinceTime PodAndContainerStatsFromCRI PodCertificateRequest PodLevelResourceManagers
PodLogsQuerySplitStreams PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay RuntimeClassInImageCriApi SELinuxMount
SchedulerAsyncAPICalls SeparateCacheWatchRPC ShardedListAndWatch StorageCapacityScoring StorageVersionAPI
StorageVersionMigrator TaintTolerationComparisonOperators TopologyAwareWorkloadScheduling
TopologyManagerPolicyAlphaOptions UserNamespacesHostNetworkSupport VolumeLimitScaling WindowsCPUAndMemoryAffinity
WindowsHostNetwork WorkloadAwarePreemption WorkloadWithJob
";

/// A value of a flag that asks for what kedge does not do, or that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// A name alone.
    #[error("missing bool value for {0}")]
    NoValue(String),
    /// `Name=maybe`
    #[error("invalid value of {name}={value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax")]
    NoBool {
        /// Of the gate.
        name: String,
        /// As it was given.
        value: String,
    },
    /// v1.36 has no such gate.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    /// Upstream can do it, kedge cannot.
    #[error("feature gate {0}: kedge does not have this feature; leave the gate out or set it to false")]
    Absent(String),
    /// kedge has no switch for it.
    #[error("feature gate {name} is {is} in kedge and cannot be set to {}", !.is)]
    Fixed {
        /// Of the gate.
        name: String,
        /// As kedge behaves.
        is: bool,
    },
}

/// Checks a flag's value: `Name=true,Other=false`.
///
/// Errors: a gate that v1.36 does not have, that is no switch, or that asks for what kedge does not do.
pub fn check(value: &str) -> Result<(), GateError> {
    for pair in value.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (name, wanted) = pair.split_once('=').ok_or_else(|| GateError::NoValue(pair.to_owned()))?;
        let (name, wanted) = (name.trim(), wanted.trim());
        let wanted = match wanted.to_ascii_lowercase().as_str() {
            "true" | "t" | "1" => true,
            "false" | "f" | "0" => false,
            _ => return Err(GateError::NoBool { name: name.to_owned(), value: wanted.to_owned() }),
        };
        let has = |list: &str| list.split_ascii_whitespace().any(|n| n == name);
        let is = match name {
            "AllAlpha" => false,
            _ if has(ON) => true,
            _ if has(OFF) || has(ABSENT) => false,
            _ => return Err(GateError::Unknown(name.to_owned())),
        };
        if wanted && has(ABSENT) {
            return Err(GateError::Absent(name.to_owned()));
        }
        if is != wanted {
            return Err(GateError::Fixed { name: name.to_owned(), is });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{ABSENT, OFF, ON, check};

    #[test]
    fn a_gate_may_be_asked_for_as_it_is() {
        for value in
            ["", " , ", "AnonymousAuthConfigurableEndpoints=true, HPAScaleToZero=false", "AllAlpha=f", "WatchList=T"]
        {
            assert_eq!(check(value), Ok(()), "{value}");
        }
        for (value, why) in [
            ("Nonsense=true", "unrecognized feature gate: Nonsense"),
            ("HPAScaleToZero=true", "feature gate HPAScaleToZero is false in kedge and cannot be set to true"),
            ("WatchList=0", "feature gate WatchList is true in kedge and cannot be set to false"),
            ("AllAlpha=true", "feature gate AllAlpha is false in kedge and cannot be set to true"),
            ("HPAScaleToZero", "missing bool value for HPAScaleToZero"),
            (
                "WatchList=maybe",
                "invalid value of WatchList=maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
        ] {
            assert_eq!(check(value).unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn what_kedge_does_not_have_cannot_be_switched_on() {
        for gate in ABSENT.split_ascii_whitespace() {
            assert!(
                check(&format!("{gate}=true")).unwrap_err().to_string().contains("does not have this feature"),
                "{gate}"
            );
            assert_eq!(check(&format!("{gate}=false")), Ok(()));
        }
        let mut all: Vec<&str> = [ON, ABSENT, OFF].iter().flat_map(|list| list.split_ascii_whitespace()).collect();
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n, "a gate stands in two lists");
    }
}
