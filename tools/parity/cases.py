"""The small random checkpoints that parity is asserted on.

To add a family: add one case here; `./dev parity` makes its checkpoint, asks transformers for the tokens and compares
them with the server's in every regime. Sizes are odd on purpose: heads no power of two, windows no multiple of a block.
"""

import dataclasses

VOCAB = 331
PROMPT_LENGTHS = [1, 2, 7, 16, 17, 33, 64, 100, 257, 300]
NEW_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class Case:
    config: str  # class of transformers
    fields: dict
    embedding_scale: float = 1.0  # a tied head on large embeddings would only repeat its input
    # Ask the model's whole forward for each token instead of generate(), whose cache is wrong for the case.
    whole_forward: bool = False
    # The experts' weights are drawn as MXFP4 and stored so.
    mxfp4: bool = False
    # Encoder-decoder models: prompts go to the encoder.
    forced_bos: int | None = None  # in each request, beside what the configuration says
    decoder_tokens: tuple = ()  # what the decoder starts from after its start token
    own_head: bool = False  # The class ties the head whatever the configuration says.
    # Pairs of a part of a parameter's name and a factor. What one prompt gives a decoder is the same at every token,
    # and would drown the tokens.
    scales: tuple = ()
    # Factor of the matrices of the bfloat16 checkpoint: about what training would leave. Larger ones make softmaxes so
    # sharp that transformers' own bfloat16 is up to 15 % of the logits' spread away from float32.
    bf16_scale: float = 0.1
    generation: dict = dataclasses.field(default_factory=dict)  # put into generation_config.json
    shifts: dict = dataclasses.field(default_factory=dict)  # added to the parameters whose names end so
    # --attention_window and --sink_tokens: what layers that would see all see instead.
    window: int = 0
    sinks: int = 0


COMMON = dict(vocab_size=VOCAB, hidden_size=60, intermediate_size=100, num_hidden_layers=3, num_attention_heads=6,
              num_key_value_heads=2, initializer_range=0.3, max_position_embeddings=1024, bos_token_id=0,
              eos_token_id=1, pad_token_id=2)
ATTENTION = dict(COMMON, head_dim=20)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=1000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)
GEMMA3 = dict(ATTENTION, num_hidden_layers=4, sliding_window=21, query_pre_attn_scalar=17,
              layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
              rope_parameters=dict(full_attention=dict(rope_type="linear", factor=2.0, rope_theta=20000.0),
                                   sliding_attention=dict(rope_type="default", rope_theta=1000.0)))
GEMMA3N = dict(ATTENTION, num_hidden_layers=6, sliding_window=21, intermediate_size=[100, 90, 100, 110, 100, 80],
               layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                            "full_attention", "sliding_attention"], num_kv_shared_layers=3, laurel_rank=14,
               altup_num_inputs=4, hidden_size_per_layer_input=18, vocab_size_per_layer_input=VOCAB,
               activation_sparsity_pattern=[0.9, 0.5, 0.0, 0.0, 0.0, 0.0], final_logit_softcapping=8.0,
               tie_word_embeddings=False, initializer_range=0.2, rope_parameters=GEMMA3["rope_parameters"])
GPT_OSS = dict(ATTENTION, initializer_range=0.2, num_hidden_layers=4, num_local_experts=6, num_experts_per_tok=3,
               sliding_window=21,
               rope_parameters=dict(rope_type="yarn", factor=4.0, rope_theta=1000.0, truncate=False, beta_fast=32.0,
                                    beta_slow=1.0, original_max_position_embeddings=64))
LLAMA4 = dict(ATTENTION, num_hidden_layers=4, intermediate_size_mlp=90, num_local_experts=5, num_experts_per_tok=1,
              attention_chunk_size=21, no_rope_layer_interval=3, attn_scale=0.3, floor_scale=8, initializer_range=0.2,
              rope_parameters=dict(rope_type="default", rope_theta=1000.0))
MAMBA2 = dict(vocab_size=VOCAB, hidden_size=60, num_heads=6, head_dim=20, state_size=12, num_hidden_layers=3, expand=2,
              chunk_size=16, initializer_range=0.3, bos_token_id=0, eos_token_id=1, pad_token_id=2)
MAMBA = dict(vocab_size=VOCAB, hidden_size=60, state_size=12, num_hidden_layers=3, expand=2, initializer_range=0.3,
             bos_token_id=0, eos_token_id=1, pad_token_id=2)
FALCON_H1 = dict(COMMON, mamba_d_ssm=72, mamba_n_heads=6, mamba_d_state=10, mamba_n_groups=2, mamba_d_conv=4,
                 mamba_chunk_size=16, lm_head_multiplier=0.7, embedding_multiplier=1.7, mlp_multipliers=[1.3, 0.7],
                 key_multiplier=0.8, attention_out_multiplier=0.9, attention_in_multiplier=1.1,
                 ssm_multipliers=[0.9, 1.1, 0.8, 1.2, 0.7], ssm_in_multiplier=1.2, ssm_out_multiplier=0.9)
HYBRID = dict(COMMON, num_hidden_layers=4)
JAMBA = dict(HYBRID, initializer_range=0.2, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=12, mamba_dt_rank=7,
             use_mamba_kernels=False)
BAMBA = dict(HYBRID, mamba_n_heads=6, mamba_d_state=10, mamba_chunk_size=16)
GRANITE = dict(BAMBA, layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
               embedding_multiplier=1.7, attention_multiplier=0.3, residual_multiplier=0.6, logits_scaling=1.4,
               shared_intermediate_size=70)
NEMOTRON_H = dict(vocab_size=VOCAB, hidden_size=60, intermediate_size=100, num_attention_heads=6, num_key_value_heads=2,
                  head_dim=20, initializer_range=0.3, max_position_embeddings=1024, bos_token_id=0, eos_token_id=1,
                  pad_token_id=2, ssm_state_size=10, mamba_num_heads=6, mamba_head_dim=14, chunk_size=16,
                  moe_intermediate_size=44, moe_shared_expert_intermediate_size=52)
# Smaller weights than the others': at 0.3 transformers' own float32 is up to 1e-2 away from its float64.
ZAMBA = dict(COMMON, initializer_range=0.15, num_hidden_layers=5, num_key_value_heads=3,
             layers_block_type=["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"])

BART = dict(vocab_size=VOCAB, d_model=60, encoder_layers=3, decoder_layers=2, encoder_attention_heads=6,
            decoder_attention_heads=3, encoder_ffn_dim=100, decoder_ffn_dim=84, init_std=0.3,
            max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=2, decoder_start_token_id=1)
T5 = dict(vocab_size=VOCAB, d_model=60, d_kv=14, num_heads=6, d_ff=100, num_layers=3, num_decoder_layers=2,
          initializer_factor=2.0, eos_token_id=1, pad_token_id=2, decoder_start_token_id=2)
QUIET = (("encoder_attn.out_proj", 0.1), ("self_attn.out_proj", 0.1))
DELTA_TYPES = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
# Heads of 24: their rotary quarter is of three pairs.
DELTA = dict(COMMON, initializer_range=0.2, head_dim=24, num_hidden_layers=4, layer_types=DELTA_TYPES, linear_num_key_heads=2,
             linear_num_value_heads=6, linear_key_head_dim=10, linear_value_head_dim=14)
# Time steps as trained ones are. As initialized, a token's decay is exp(-20): the state remembers nothing, and the sums
# of logarithms of 64 decays, float32 in transformers, move its logprobs by 1.4e-4 against float64. Berth's move by
# 2e-5.
SMALL_STEPS = {"dt_bias": -4.0}
QWEN3_NEXT = dict(DELTA, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=36,
                  shared_expert_intermediate_size=44)
QWEN3_5_MOE = {key: value for key, value in QWEN3_NEXT.items() if key != "intermediate_size"}
VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=60, patch_size=4,
              num_position_embeddings=16)
# Parts of wrappers of a text model. Text alone asks nothing of them.
SIGLIP = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
LLAMA4_VISION = dict(SIGLIP, vision_output_dim=16, projector_input_dim=16, projector_output_dim=16)
TOKENS = dict(bos_token_id=0, eos_token_id=1, pad_token_id=2)
OLMO_HYBRID = {key: value for key, value in DELTA.items() if key != "head_dim"}
RECURRENT_GEMMA = dict(COMMON, num_hidden_layers=5, attention_window_size=21, w_init_variance_scale=1.0,
                       block_types=["recurrent", "attention"])
LFM2 = dict(COMMON, num_hidden_layers=4, layer_types=["conv", "full_attention", "conv", "conv"],
            tie_word_embeddings=False)

CASES = {
    "llama": Case("LlamaConfig", ATTENTION),
    "llama-tied-bias": Case("LlamaConfig", dict(ATTENTION, attention_bias=True, mlp_bias=True,
                                                tie_word_embeddings=True), 0.2),
    "llama-rope-llama3": Case("LlamaConfig", dict(COMMON, rope_parameters=LLAMA3_ROPE)),
    "llama-rope-linear": Case("LlamaConfig", dict(ATTENTION, rope_parameters=dict(rope_type="linear", factor=4.0,
                                                                                  rope_theta=1000.0))),
    "llama-rope-dynamic": Case("LlamaConfig", dict(ATTENTION, max_position_embeddings=90, rope_parameters=dict(
        rope_type="dynamic", factor=3.0, rope_theta=1000.0))),
    "llama-rope-yarn": Case("LlamaConfig", dict(ATTENTION, rope_parameters=dict(
        rope_type="yarn", factor=6.0, rope_theta=1000.0, original_max_position_embeddings=64))),
    "llama-rope-yarn-mscale": Case("LlamaConfig", dict(ATTENTION, rope_parameters=dict(
        rope_type="yarn", factor=6.0, rope_theta=1000.0, original_max_position_embeddings=64, mscale=0.8,
        mscale_all_dim=1.3, beta_fast=20.0, beta_slow=2.0))),
    # By their oracle whole sequences under the mask; by the searches' also its cache, because the mask hides a part of
    # it.
    "llama-sinks": Case("LlamaConfig", ATTENTION, window=37, sinks=5, whole_forward=True),
    "mistral": Case("MistralConfig", dict(ATTENTION, sliding_window=37)),
    # transformers' cache never drops a token of a window of one, and its generate() then sees too many.
    "mistral-window-1": Case("MistralConfig", dict(ATTENTION, initializer_range=0.25, sliding_window=1), whole_forward=True),
    # With larger weights transformers' own float32, with its cache and without, differs by 1.3e-4 at one token.
    "mistral-full": Case("MistralConfig", dict(ATTENTION, initializer_range=0.2, sliding_window=None,
                                               num_key_value_heads=3)),
    "ministral": Case("MinistralConfig", dict(ATTENTION, sliding_window=37, layer_types=[
        "full_attention", "sliding_attention", "sliding_attention"])),
    "mixtral": Case("MixtralConfig", dict(ATTENTION, initializer_range=0.2, num_local_experts=5, num_experts_per_tok=2,
                                          sliding_window=None)),
    "mixtral-sliding": Case("MixtralConfig", dict(ATTENTION, num_local_experts=4, num_experts_per_tok=3,
                                                  sliding_window=21)),
    "qwen2": Case("Qwen2Config", dict(COMMON, num_key_value_heads=6)),
    "qwen2-sliding": Case("Qwen2Config", dict(COMMON, use_sliding_window=True, sliding_window=21,
                                              max_window_layers=1)),
    "qwen3": Case("Qwen3Config", dict(ATTENTION, attention_bias=True)),
    "qwen3_moe": Case("Qwen3MoeConfig", dict(ATTENTION, num_hidden_layers=4, num_experts=7, num_experts_per_tok=3,
                                             moe_intermediate_size=36, norm_topk_prob=True, decoder_sparse_step=1,
                                             mlp_only_layers=[2])),
    "qwen3_moe-plain": Case("Qwen3MoeConfig", dict(ATTENTION, num_hidden_layers=4, num_experts=6, num_experts_per_tok=2,
                                                   moe_intermediate_size=36, norm_topk_prob=False,
                                                   decoder_sparse_step=2, attention_bias=True)),
    "phi3": Case("Phi3Config", dict(COMMON, sliding_window=21)),
    "phi3-longrope": Case("Phi3Config", dict(
        COMMON, hidden_size=96, initializer_range=0.2, original_max_position_embeddings=80, rope_parameters=dict(
            rope_type="longrope", rope_theta=1000.0, partial_rotary_factor=0.75,
            short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5], long_factor=[1.0, 1.5, 2.0, 4.0, 6.0, 9.0]))),
    "smollm3": Case("SmolLM3Config", dict(ATTENTION, num_hidden_layers=4, no_rope_layers=[1, 0, 1, 1],
                                          tie_word_embeddings=False)),
    "smollm3-sliding": Case("SmolLM3Config", dict(ATTENTION, num_hidden_layers=4, no_rope_layer_interval=2,
                                                  use_sliding_window=True, sliding_window=21, attention_bias=True,
                                                  mlp_bias=True, initializer_range=0.2, tie_word_embeddings=False)),
    "olmo3": Case("Olmo3Config", dict(ATTENTION, initializer_range=0.2, num_hidden_layers=4, sliding_window=21, rope_parameters=dict(
        full_attention=dict(rope_type="yarn", factor=4.0, rope_theta=1000.0, original_max_position_embeddings=64),
        sliding_attention=dict(rope_type="default", rope_theta=1000.0)))),
    "exaone4": Case("Exaone4Config", dict(ATTENTION, num_hidden_layers=4, sliding_window=21, sliding_window_pattern=4)),
    "exaone4-full": Case("Exaone4Config", dict(ATTENTION, sliding_window=None, rope_parameters=LLAMA3_ROPE,
                                               layer_types=["full_attention"] * 3)),
    "cohere2": Case("Cohere2Config", dict(COMMON, num_hidden_layers=4, sliding_window=21, logit_scale=0.25,
                                          tie_word_embeddings=False)),
    "cohere2-tied-bias": Case("Cohere2Config", dict(COMMON, num_hidden_layers=4, sliding_window=37, logit_scale=0.5,
                                                    attention_bias=True), 0.3),
    "gemma2": Case("Gemma2Config", dict(ATTENTION, num_hidden_layers=4, sliding_window=21, query_pre_attn_scalar=17,
                                        attn_logit_softcapping=5.0, final_logit_softcapping=8.0), 0.05),
    "gemma3_text": Case("Gemma3TextConfig", dict(GEMMA3, tie_word_embeddings=False)),
    "gemma3_text-sinks": Case("Gemma3TextConfig", dict(GEMMA3, tie_word_embeddings=False), window=50, sinks=19,
                              whole_forward=True),
    "gemma3_text-tied": Case("Gemma3TextConfig", dict(GEMMA3, final_logit_softcapping=8.0), 0.05),
    "gemma3n_text": Case("Gemma3nTextConfig", dict(GEMMA3N, altup_active_idx=0), bf16_scale=0.05),
    "gemma3n_text-tied": Case("Gemma3nTextConfig", dict(GEMMA3N, altup_correct_scale=False, altup_num_inputs=3,
                                                        num_kv_shared_layers=0, tie_word_embeddings=True), 0.2),
    # Their text_config says "tied" where the wrapper says "not", and the other way round: the wrapper has the head.
    "gemma3": Case("Gemma3Config", dict(TOKENS, text_config=GEMMA3, vision_config=SIGLIP, mm_tokens_per_image=4,
                                        tie_word_embeddings=False)),
    "gemma3-tied": Case("Gemma3Config", dict(TOKENS, text_config=dict(GEMMA3, tie_word_embeddings=False),
                                             vision_config=SIGLIP, mm_tokens_per_image=4), 0.05),
    "gemma3n": Case("Gemma3nConfig", dict(TOKENS, text_config=GEMMA3N, vision_config=dict(hidden_size=16),
                                          audio_config=dict(hidden_size=16, conf_num_attention_heads=2,
                                                            conf_num_hidden_layers=1), tie_word_embeddings=False)),
    "gpt_oss": Case("GptOssConfig", GPT_OSS),
    "gpt_oss-sinks": Case("GptOssConfig", GPT_OSS, window=50, sinks=4, whole_forward=True),
    "gpt_oss-swiglu": Case("GptOssConfig", dict(GPT_OSS, swiglu_alpha=0.9, swiglu_limit=1.5)),
    "gpt_oss-mxfp4": Case("GptOssConfig", dict(GPT_OSS, hidden_size=64, intermediate_size=96), mxfp4=True),
    "llama4_text": Case("Llama4TextConfig", LLAMA4),
    "llama4_text-dense": Case("Llama4TextConfig", dict(LLAMA4, use_qk_norm=False, attn_temperature_tuning=False,
                                                       interleave_moe_layer_step=2, num_experts_per_tok=2,
                                                       no_rope_layer_interval=2, attention_bias=True)),
    "llama4_text-without_experts": Case("Llama4TextConfig", dict(LLAMA4, moe_layers=[], interleave_moe_layer_step=0,
                                                                 num_local_experts=0, num_experts_per_tok=0)),
    "llama4": Case("Llama4Config", dict(TOKENS, text_config=LLAMA4, vision_config=LLAMA4_VISION)),
    "mamba": Case("MambaConfig", dict(MAMBA, time_step_rank=7, use_bias=True, conv_kernel=3,
                                      tie_word_embeddings=False)),
    "mamba-tied": Case("MambaConfig", dict(MAMBA, use_conv_bias=False, residual_in_fp32=False), 0.3),
    "falcon_mamba": Case("FalconMambaConfig", dict(MAMBA, time_step_rank=7, mixer_rms_eps=1e-3,
                                                   tie_word_embeddings=False)),
    "mamba2": Case("Mamba2Config", dict(MAMBA2, n_groups=2, use_bias=True, conv_kernel=4)),
    "mamba2-tied": Case("Mamba2Config", dict(MAMBA2, n_groups=1, conv_kernel=3, tie_word_embeddings=True,
                                             residual_in_fp32=False), 0.3),
    "falcon_h1": Case("FalconH1Config", dict(FALCON_H1, mamba_rms_norm=False)),
    "falcon_h1-sinks": Case("FalconH1Config", dict(FALCON_H1, mamba_rms_norm=False), window=37, sinks=3,
                            whole_forward=True),
    "falcon_h1-norm-first": Case("FalconH1Config", dict(FALCON_H1, mamba_rms_norm=True, mamba_norm_before_gate=True,
                                                        attention_bias=True, mlp_bias=True)),
    "bart": Case("BartConfig", BART, 0.5, scales=(*QUIET, ("embed_positions", 3.0)),
                 generation=dict(forced_bos_token_id=17, forced_eos_token_id=1)),
    "bart-untied-relu": Case("BartConfig", dict(BART, activation_function="relu", scale_embedding=True,
                                                forced_eos_token_id=None, tie_word_embeddings=False), 0.3,
                             decoder_tokens=tuple(range(40, 60)), scales=(*QUIET, ("embed_positions", 8.0))),
    "m2m_100": Case("M2M100Config", BART, 0.1, forced_bos=23, scales=(*QUIET, ("fc2", 3.0))),
    "m2m_100-decoder-tokens": Case("M2M100Config", dict(BART, activation_function="gelu"), 0.1, decoder_tokens=(
        2, 50, 51, 2, 2, 52, 53, 54, 2, 55, 56, 57, 58, 59, 60, 61, 62), scales=(*QUIET, ("fc2", 3.0))),
    "t5": Case("T5Config", T5, 0.05, decoder_tokens=tuple(range(70, 90)), scales=(("EncDecAttention.o", 0.3),)),
    # With factors of 2 transformers' own float32 is 6e-4 away from float64: scores are not scaled.
    "t5-gated": Case("T5Config", dict(T5, initializer_factor=1.0, feed_forward_proj="gated-gelu",
                                      tie_word_embeddings=False, relative_attention_num_buckets=8,
                                      relative_attention_max_distance=20), forced_bos=23, own_head=True),
    "falcon_h1-gate-first": Case("FalconH1Config", dict(FALCON_H1, mamba_rms_norm=True, mamba_norm_before_gate=False,
                                                        projectors_bias=True, mamba_proj_bias=True, head_dim=16)),
    "qwen3_next": Case("Qwen3NextConfig", dict(QWEN3_NEXT, initializer_range=0.15, mlp_only_layers=[2]), shifts=SMALL_STEPS),
    "qwen3_next-plain": Case("Qwen3NextConfig", dict(
        QWEN3_NEXT, norm_topk_prob=False, decoder_sparse_step=2, attention_bias=True, linear_num_key_heads=3,
        linear_num_value_heads=3, linear_conv_kernel_dim=3,
        rope_parameters=dict(rope_type="default", rope_theta=1000.0, partial_rotary_factor=0.5)), shifts=SMALL_STEPS),
    "qwen3_5_text": Case("Qwen3_5TextConfig", dict(DELTA, rope_parameters=dict(
        rope_type="default", rope_theta=1000.0, partial_rotary_factor=0.5, mrope_interleaved=True,
        mrope_section=[2, 2, 2])), shifts=SMALL_STEPS),
    "qwen3_5_moe_text": Case("Qwen3_5MoeTextConfig", QWEN3_5_MOE, shifts=SMALL_STEPS),
    "qwen3_5": Case("Qwen3_5Config", dict(text_config=DELTA, vision_config=VISION, bos_token_id=0, eos_token_id=1,
                                          pad_token_id=2, tie_word_embeddings=False), shifts=SMALL_STEPS),
    "qwen3_5_moe": Case("Qwen3_5MoeConfig", dict(text_config=QWEN3_5_MOE, vision_config=VISION, bos_token_id=0,
                                                 eos_token_id=1, pad_token_id=2, tie_word_embeddings=True), 0.2,
                        shifts=SMALL_STEPS),
    "olmo_hybrid": Case("OlmoHybridConfig", OLMO_HYBRID),
    "olmo_hybrid-nope": Case("OlmoHybridConfig", dict(
        OLMO_HYBRID, linear_allow_neg_eigval=False, attention_bias=True, linear_num_key_heads=3,
        linear_conv_kernel_dim=3, rope_parameters=dict(rope_type="default", rope_theta=None))),
    "recurrent_gemma": Case("RecurrentGemmaConfig", dict(RECURRENT_GEMMA, num_key_value_heads=1)),
    "recurrent_gemma-untied": Case("RecurrentGemmaConfig", dict(
        RECURRENT_GEMMA, attention_bias=True, conv1d_width=3, logits_soft_cap=5.0, tie_word_embeddings=False)),
    "lfm2": Case("Lfm2Config", dict(LFM2, conv_bias=True, block_multiple_of=16, block_ffn_dim_multiplier=1.1)),
    "lfm2-plain": Case("Lfm2Config", dict(LFM2, layer_types=None, full_attn_idxs=[2], conv_L_cache=4,
                                          block_auto_adjust_ff_dim=False, tie_word_embeddings=True), 0.3),
    "lfm2_moe": Case("Lfm2MoeConfig", dict(LFM2, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=36,
                                           num_dense_layers=1, routed_scaling_factor=1.3)),
    "lfm2_moe-plain": Case("Lfm2MoeConfig", dict(LFM2, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=36,
                                                 num_dense_layers=2, use_expert_bias=False, norm_topk_prob=False)),
    "jamba": Case("JambaConfig", dict(JAMBA, num_experts=5, num_experts_per_tok=2)),
    "jamba-dense": Case("JambaConfig", dict(JAMBA, num_experts=1, mamba_conv_bias=False, mamba_proj_bias=True,
                                            mamba_d_conv=3, mamba_expand=3)),
    "bamba": Case("BambaConfig", dict(BAMBA, attn_layer_indices=[1, 3], mamba_n_groups=2, mamba_proj_bias=True)),
    "bamba-biases": Case("BambaConfig", dict(BAMBA, attn_layer_indices=[2], attention_bias=True, mlp_bias=True,
                                             mamba_conv_bias=False, mamba_d_conv=3)),
    "granitemoehybrid": Case("GraniteMoeHybridConfig", dict(GRANITE, num_local_experts=5, num_experts_per_tok=2,
                                                            mamba_n_groups=3)),
    "granitemoehybrid-dense": Case("GraniteMoeHybridConfig", dict(
        GRANITE, num_local_experts=0, num_experts_per_tok=0, position_embedding_type="rope", attention_bias=True)),
    "nemotron_h": Case("NemotronHConfig", dict(
        NEMOTRON_H, layers_block_type=["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
        n_routed_experts=6, num_experts_per_tok=3, n_group=3, topk_group=2, routed_scaling_factor=1.3, n_groups=2)),
    "nemotron_h-latent": Case("NemotronHConfig", dict(
        NEMOTRON_H, layers_block_type=["linear_attention", "full_attention", "moe", "linear_attention", "moe"],
        n_routed_experts=5, num_experts_per_tok=2, norm_topk_prob=False, moe_latent_size=36, mlp_bias=True,
        use_bias=True, n_groups=3, time_step_min=0.05)),
    "zamba": Case("ZambaConfig", dict(ZAMBA, n_mamba_heads=3, mamba_d_state=12, mamba_dt_rank=7,
                                      use_mamba_kernels=False), 0.3),
    "zamba-untied": Case("ZambaConfig", dict(ZAMBA, initializer_range=0.18, n_mamba_heads=1, mamba_proj_bias=True, mamba_conv_bias=False,
                                             mamba_d_conv=3, use_mamba_kernels=False, tie_word_embeddings=False)),
    "zamba2": Case("Zamba2Config", dict(ZAMBA, mamba_d_state=10, n_mamba_heads=6, mamba_ngroups=2, num_mem_blocks=2,
                                        adapter_rank=9, chunk_size=16, tie_word_embeddings=False)),
    "zamba2-adapters": Case("Zamba2Config", dict(
        ZAMBA, num_key_value_heads=6, mamba_d_state=10, n_mamba_heads=6, num_mem_blocks=2, adapter_rank=9,
        chunk_size=16, use_shared_attention_adapter=True, use_mem_rope=True, add_bias_linear=True), 0.3),
}

# A case for each kind of cache and each kind of layer. These are full and windowed and chunked attention, sinks, Mamba
# and Mamba-2, the gated delta net, RG-LRU, convolutions, experts, and an encoder. `./dev test` runs these, `./dev test
# --full` all.
ONE_OF_EACH = ["llama", "gemma3_text", "gpt_oss", "llama4_text", "mamba", "falcon_h1", "qwen3_next", "recurrent_gemma",
               "lfm2_moe", "t5"]
