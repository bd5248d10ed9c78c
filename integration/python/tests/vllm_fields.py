"""All settings of vLLM that the connector was written with in view: those of 0.29 to 0.33.

`MANIFEST` are in the namespace manifest, by themselves or by what they lead to; with `REFUSED` the engine goes
on without cache, or does not start; `OTHER` change no KV of given tokens. A setting that is nowhere in here is new:
find out what it does to KV, put it where it belongs, and note it in docs/adr/0010-identity.md.
"""

from __future__ import annotations

MANIFEST: dict[str, str] = {
    "VllmConfig": """
        additional_config attention_config cache_config device_config kv_transfer_config load_config lora_config
        model_config parallel_config speculative_config
    """,
    "ModelConfig": """
        code_revision config_format convert disable_sliding_window dtype generation_config hf_config
        hf_config_path hf_overrides hf_text_config is_submodel_config max_model_len model model_class_overrides
        model_impl multimodal_config override_generation_config quantization quantization_config revision
        runner trust_remote_code
    """,
    "CacheConfig": """
        block_size cache_dtype kv_cache_dtype_skip_layers kv_cache_layout kv_sharing_fast_prefill sliding_window
        swa_bounded_replay
    """,
    "ParallelConfig": """
        pipeline_parallel_size tensor_parallel_size
    """,
    "LoadConfig": """
        load_format model_loader_extra_config
    """,
    "LoRAConfig": """
        enable_mixed_moe_lora_format enable_moe_shared_loras enable_tower_connector_lora lora_dtype target_modules
    """,
    "SpeculativeConfig": """
        code_revision draft_load_config draft_model_config index_share_for_mtp_iteration kv_cache_dtype method model
        num_speculative_tokens parallel_drafting quantization revision use_heterogeneous_vocab
    """,
    "AttentionConfig": """
        backend backend_per_kind hisparse_config indexer_kv_dtype use_fp4_indexer_cache use_non_causal
    """,
    "MultiModalConfig": """
        interleave_mm_strings language_model_only media_io_kwargs mm_device_do_normalize mm_encoder_attn_backend
        mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_processor_kwargs video_pruning_method video_pruning_rate
    """,
}

REFUSED: dict[str, str] = {
    "VllmConfig": """
        diffusion_config ec_transfer_config weight_transfer_config
    """,
    "ModelConfig": """
        model_weights
    """,
    "ParallelConfig": """
        _allow_auto_resolve_cp_interleave_size cp_kv_cache_interleave_size dcp_comm_backend
        dcp_kv_cache_interleave_size dcp_q_replicate decode_context_parallel_size prefill_context_parallel_size
    """,
    "MultiModalConfig": """
        mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path
    """,
}

OTHER: dict[str, str] = {
    # Scheduling, speed, logs, sampling; Mamba is refused by its KV cache; engrams depend on the prefix alone.
    "VllmConfig": """
        aux_output_config compilation_config ec_manager_config engram_config instance_id kernel_config
        kv_events_config logging_config mamba_config observability_config offload_config optimization_level
        performance_mode profiler_config quant_config reasoning_config scheduler_config shutdown_timeout
        structured_outputs_config watchdog_config watermark_config
    """,
    # Names, tokenizer, sampling, logs, speed, memory; prompt embeddings are known by content.
    "ModelConfig": """
        allow_deprecated_quantization allowed_local_media_path allowed_media_domains disable_cascade_attn
        enable_cumem_allocator enable_nccl_comm_suspend enable_prompt_embeds enable_return_routed_experts
        enable_sleep_mode enable_trace_replay enforce_eager hf_token io_processor_plugin logits_processors
        logprobs_mode max_logprobs pooler_config renderer_num_workers return_sampling_mask seed
        served_model_name skip_tokenizer_init sleep_mode_backend sleep_mode_offload_cudagraph
        sleep_preserve_parameter_names spec_target_max_model_len tokenizer tokenizer_mode tokenizer_revision
        use_fp64_gumbel word_embeddings_untied_by_checkpoint
    """,
    # Size and place of the cache, its hashes and events; Mamba is refused by its KV cache.
    "CacheConfig": """
        _block_size_resolved cache_hit_alignment_tokens effective_attention_block_size
        enable_mamba_fine_grained_prefix_cache enable_mamba_shared_prefix_checkpoint enable_prefix_caching
        gpu_memory_utilization hash_block_size is_attention_free kv_cache_max_concurrency kv_cache_memory_bytes
        kv_cache_size_tokens kv_offloading_backend kv_offloading_size mamba_block_size mamba_cache_dtype
        mamba_cache_mode mamba_page_size_padded mamba_ssm_cache_dtype num_cpu_blocks num_gpu_blocks
        num_gpu_blocks_override prefix_cache_retention_interval prefix_caching_hash_algo prefix_match_unit
        replayssm_buffer_len simple_cpu_offload_num_blocks skip_page_size_padded use_kda_recoverssm
        use_replayssm user_specified_block_size user_specified_mamba_block_size
    """,
    # Data parallelism, experts, communication, processes: who computes, not what.
    "ParallelConfig": """
        _api_process_count _api_process_rank _coord_store_port _data_parallel_master_port_list all2all_backend
        assigned_physical_gpu_ids cpu_distributed_timeout_seconds data_parallel_backend data_parallel_external_lb
        data_parallel_hybrid_lb data_parallel_index data_parallel_master_ip data_parallel_master_port
        data_parallel_rank data_parallel_rank_local data_parallel_rpc_port data_parallel_size
        data_parallel_size_local dbo_decode_token_threshold dbo_prefill_token_threshold disable_custom_all_reduce
        disable_nccl_for_dp_synchronization distributed_executor_backend distributed_timeout_seconds
        dp_sync_interval elastic_ep_max_dp_size enable_batch_sharded_sampling enable_dbo enable_elastic_ep
        enable_ep_weight_filter enable_eplb enable_expert_parallel enable_fault_tolerance enable_hc_sp
        enable_shm_tensor_arena eplb_config expert_placement_strategy fault_tolerance_config is_moe_model
        master_addr master_port max_parallel_loading_workers nnodes node_rank numa_bind numa_bind_cpus
        numa_bind_nodes placement_group rank ray_runtime_env ray_workers_use_nsight sd_worker_cls ubatch_size worker_cls
        worker_extension_cls world_size
    """,
    # How files are read, not which.
    "LoadConfig": """
        device download_dir ignore_patterns pt_load_map_location safetensors_load_strategy
        safetensors_prefetch_block_size safetensors_prefetch_num_threads use_tqdm_on_load
    """,
    # Room for adapters; default_mm_loras are adapters of requests.
    "LoRAConfig": """
        default_mm_loras fully_sharded_loras max_cpu_loras max_lora_cls_labels max_lora_rank max_loras
        specialize_active_lora
    """,
    # What is proposed and accepted: KV of rejected tokens is overwritten; ngram and suffix keep none.
    "SpeculativeConfig": """
        attention_backend disable_eagle_block_drop disable_lookahead_block_hashes disable_padded_drafter_batch
        draft_lm_head_quantization draft_parallel_config draft_sample_method draft_tensor_parallel_size
        dspark_draft_topk enable_adaptive_verification enforce_eager fly_entropy_threshold fly_entropy_top_k
        fly_window_size max_model_len moe_backend num_speculative_tokens_per_batch_size prompt_lookup_max
        prompt_lookup_min rejection_sample_method suffix_decoding_max_cached_requests
        suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth suffix_decoding_min_token_prob
        synthetic_acceptance_length synthetic_acceptance_rates target_model_config target_parallel_config
        tensor_parallel_size use_local_argmax_reduction xpress_topc
    """,
    # Kernels and their tuning.
    "AttentionConfig": """
        disable_flashinfer_q_quantization flash_attn_max_num_splits_for_cuda_graph flash_attn_version
        flex_attn_block_m flex_attn_block_n flex_attn_kv_block_size flex_attn_q_block_size indexer_sparse_logits
        indexer_tp_shard_min_rows minimax_m3_indexer_cp minimax_m3_msa_decode_backend mla_prefill_backend
        sparse_mla_force_mqa sparse_mla_prefill_workspace_factor tokenspeed_mla_min_split_kv
        tq_max_kv_splits_for_cuda_graph trtllm_ragged_backend use_prefill_query_quantization use_trtllm_attention
    """,
    # Caches, limits, transport; what identifies an item is in its id, which must be a digest.
    "MultiModalConfig": """
        allow_missing_mm_embeddings enable_mm_embeds limit_per_prompt mm_encoder_only mm_encoder_tp_mode
        mm_hasher_algorithm mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type
        mm_shm_cache_max_object_size_mb mm_tensor_ipc skip_mm_profiling
    """,
}
