#include "server/metrics/load_table.h"

#include <algorithm>
#include <string>

#include "cache/spec.h"

namespace berth {
namespace {

using Load = v1::GetLoadResponse;

constexpr LoadFigure kEngine[] = {
    // Requests.
    {.metric = "berth_requests_running",
     .help = "Sequences that hold cache and run. Each output of a request is one sequence",
     .alias = "vllm:num_requests_running",
     .field = &Load::set_running,
     .value = [](const ServerLoad& load) { return load.engine.counts.num_running; }},
    {.metric = "berth_requests_waiting",
     .help =
         "Sequences that wait for cache, for a place or for a prefix that is being computed, preempted ones included",
     .alias = "vllm:num_requests_waiting",
     .field = &Load::set_waiting,
     .value = [](const ServerLoad& load) { return load.engine.counts.num_waiting; }},
    {.metric = "berth_requests_paused",
     .help = "Sequences that neither run nor wait, because their clients do not read what was sent",
     .field = &Load::set_paused,
     .value = [](const ServerLoad& load) { return load.engine.counts.num_paused; }},
    {.metric = "berth_requests_queued",
     .help = "Waiting sequences that never ran; --max_queue limits them",
     .field = &Load::set_queued,
     .value = [](const ServerLoad& load) { return load.engine.counts.num_new; }},
    {.metric = "berth_requests_waiting_tokens",
     .help = "Tokens that the waiting sequences have to prefill",
     .field = &Load::set_waiting_tokens,
     .value = [](const ServerLoad& load) { return load.engine.counts.waiting_tokens; }},
    {.metric = "berth_predicted_wait_seconds",
     .help = "Predicted wait of a request for its first step if it went behind all that wait; --max_wait limits a "
             "request's own",
     .scale = 1e-3,
     .field = &Load::set_predicted_wait_ms,
     .value = [](const ServerLoad& load) { return load.engine.predicted_wait_ms; }},
    {.metric = "berth_predicted_wait_new_tenant_seconds",
     .help = "Predicted wait of a request for its first step if nothing else of its tenant waited",
     .scale = 1e-3,
     .field = &Load::set_predicted_wait_new_tenant_ms,
     .value = [](const ServerLoad& load) { return load.engine.predicted_wait_new_tenant_ms; }},

    // Preemptions.
    {.metric = "berth_preemptions_total",
     .help = "Preemptions, by what happened to the cache: swap_out moves it to the host tier, recompute drops it",
     .labels = {{"action", "swap_out"}},
     .field = &Load::set_swap_outs,
     .value = [](const ServerLoad& load) { return load.engine.counts.num_swap_outs; }},
    {.metric = "berth_preemptions_total",
     .labels = {{"action", "recompute"}},
     .field = &Load::set_recomputes,
     .value = [](const ServerLoad& load) { return load.engine.counts.num_recomputes; }},
    {.metric = "berth_pauses_total",
     .help = "Pauses of requests whose clients did not read; a running request is then preempted",
     .field = &Load::set_pauses,
     .value = [](const ServerLoad& load) { return load.engine.counts.num_pauses; }},
    {.metric = "vllm:num_preemptions_total",
     .help = "Preemptions",
     .field = &Load::set_preemptions,
     .value = [](const ServerLoad& load) { return load.engine.counts.num_preemptions; }},

    // Tokens.
    {.metric = "berth_prompt_tokens_total",
     .help = "Prompt tokens computed or found in the cache; recomputation after a preemption does not count",
     .alias = "vllm:prompt_tokens_total",
     .field = &Load::set_prompt_tokens,
     .value = [](const ServerLoad& load) { return load.engine.counts.prompt_tokens; }},
    {.metric = "berth_generation_tokens_total",
     .help = "Tokens generated",
     .alias = "vllm:generation_tokens_total",
     .field = &Load::set_generation_tokens,
     .value = [](const ServerLoad& load) { return load.engine.counts.generation_tokens; }},
    {.metric = "berth_prefix_cache_queried_tokens_total",
     .help = "Prompt tokens of requests that looked for a cached prefix",
     .alias = "vllm:prefix_cache_queries_total",
     .field = &Load::set_prefix_queried_tokens,
     .value = [](const ServerLoad& load) { return load.engine.counts.prefix_queried_tokens; }},
    {.metric = "berth_prefix_cache_hit_tokens_total",
     .help = "Prompt tokens found in the prefix cache",
     .alias = "vllm:prefix_cache_hits_total",
     .field = &Load::set_prefix_hit_tokens,
     .value = [](const ServerLoad& load) { return load.engine.counts.prefix_hit_tokens; }},
    {.metric = "berth_prefix_cache_replayed_tokens_total",
     .help = "Prompt tokens of a cached prefix that ran again, from the last kept recurrent state",
     .field = &Load::set_prefix_replayed_tokens,
     .value = [](const ServerLoad& load) { return load.engine.counts.prefix_replayed_tokens; }},
    {.metric = "berth_draft_tokens_total",
     .help = "Draft tokens checked",
     .alias = "vllm:spec_decode_num_draft_tokens_total",
     .field = &Load::set_draft_tokens,
     .value = [](const ServerLoad& load) { return load.engine.counts.draft_tokens; }},
    {.metric = "berth_accepted_draft_tokens_total",
     .help = "Draft tokens accepted",
     .alias = "vllm:spec_decode_num_accepted_tokens_total",
     .field = &Load::set_accepted_draft_tokens,
     .value = [](const ServerLoad& load) { return load.engine.counts.accepted_draft_tokens; }},
    {.metric = "berth_forced_tokens_total",
     .help = "Tokens that a structured output had to continue with; each saved a step",
     .field = &Load::set_forced_tokens,
     .value = [](const ServerLoad& load) { return load.engine.counts.forced_tokens; }},

    // Steps.
    {.metric = "berth_steps_total",
     .help = "Steps that succeeded",
     .field = &Load::set_steps,
     .value = [](const ServerLoad& load) { return load.engine.num_steps; }},
    {.metric = "berth_failed_steps_total",
     .help = "Steps that failed. If a step held several requests, each is then computed again in steps of its own",
     .field = &Load::set_failed_steps,
     .value = [](const ServerLoad& load) { return load.engine.num_failed_steps; }},
    {.metric = "berth_retried_steps_total",
     .help = "Steps that computed one request again, alone, after a step of several failed",
     .field = &Load::set_retried_steps,
     .value = [](const ServerLoad& load) { return load.engine.counts.num_retried_steps; }},
    {.metric = "berth_device_allocations_total",
     .help = "GPU memory allocations since start; constant after warm-up",
     .field = &Load::set_device_allocations,
     .value = [](const ServerLoad& load) { return load.engine.num_device_allocations; }},
    {.metric = "berth_graph_launches_total",
     .help = "Steps launched as CUDA graphs",
     .field = &Load::set_graph_launches,
     .value = [](const ServerLoad& load) { return load.engine.num_graph_launches; }},
    {.metric = "berth_graph_refusals_total",
     .help = "Failed attempts to record a step as a CUDA graph; after the first, steps run without graphs",
     .field = &Load::set_graph_refusals,
     .value = [](const ServerLoad& load) { return load.engine.num_graph_refusals; }},
};

constexpr LoadFigure kGrammars[] = {
    {.metric = "berth_grammar_compilations_total",
     .help = "Compilations of the grammars of structured outputs, by result. cancelled: their requests had ended",
     .labels = {{"result", "ok"}},
     .field = &Load::set_grammars_compiled,
     .value = [](const ServerLoad& load) { return load.grammars.compiled; }},
    {.metric = "berth_grammar_compilations_total",
     .labels = {{"result", "failed"}},
     .field = &Load::set_grammars_failed,
     .value = [](const ServerLoad& load) { return load.grammars.failed; }},
    {.metric = "berth_grammar_compilations_total",
     .labels = {{"result", "cancelled"}},
     .field = &Load::set_grammars_cancelled,
     .value = [](const ServerLoad& load) { return load.grammars.cancelled; }},
    {.metric = "berth_grammar_cache_hits_total",
     .help = "Requests whose grammar was compiled already, or was being compiled for another request",
     .field = &Load::set_grammar_cache_hits,
     .value = [](const ServerLoad& load) { return load.grammars.hits; }},
    {.metric = "berth_grammar_requests_waiting",
     .help = "Requests whose grammar is not compiled yet; they are not in the engine's queue",
     .field = &Load::set_grammars_waiting,
     .value = [](const ServerLoad& load) { return load.grammars.waiting; }},
    {.metric = "berth_grammar_cache_bytes",
     .help = "Memory for compiled grammars",
     .labels = {{"state", "used"}},
     .field = &Load::set_grammar_cache_bytes,
     .value = [](const ServerLoad& load) { return load.grammars.cache_bytes; }},
    {.metric = "berth_grammar_cache_bytes",
     .labels = {{"state", "free"}},
     .value = [](const ServerLoad& load) { return load.grammars.cache_limit_bytes - load.grammars.cache_bytes; }},
    {.field = &Load::set_grammar_cache_limit_bytes,
     .value = [](const ServerLoad& load) { return load.grammars.cache_limit_bytes; }},
};

constexpr LoadFigure kTexts[] = {
    {.metric = "berth_texts",
     .help = "Prompts and chats that are tokenised, detokenised or rendered, by state; not in the engine's queue",
     .labels = {{"state", "waiting"}},
     .field = &Load::set_texts_waiting,
     .value = [](const ServerLoad& load) { return load.texts.waiting; }},
    {.metric = "berth_texts",
     .labels = {{"state", "running"}},
     .field = &Load::set_texts_running,
     .value = [](const ServerLoad& load) { return load.texts.running; }},
    {.metric = "berth_text_waiting_bytes",
     .help = "Bytes of the texts that wait",
     .field = &Load::set_text_waiting_bytes,
     .value = [](const ServerLoad& load) { return load.texts.waiting_bytes; }},
    {.metric = "berth_texts_total",
     .help = "Texts that were tokenised, detokenised or rendered (done), or refused because too many waited",
     .labels = {{"result", "done"}},
     .field = &Load::set_texts_done,
     .value = [](const ServerLoad& load) { return load.texts.done; }},
    {.metric = "berth_texts_total",
     .labels = {{"result", "refused"}},
     .field = &Load::set_texts_refused,
     .value = [](const ServerLoad& load) { return load.texts.refused; }},
};

constexpr LoadFigure kDelivery[] = {
    {.metric = "berth_undelivered_bytes",
     .help = "Memory for messages that clients have not taken yet",
     .labels = {{"state", "used"}},
     .field = &Load::set_undelivered_bytes,
     .value = [](const ServerLoad& load) { return load.delivery.bytes; }},
    {.metric = "berth_undelivered_bytes",
     .labels = {{"state", "free"}},
     .value =
         [](const ServerLoad& load) { return std::max<int64_t>(0, load.delivery.limit_bytes - load.delivery.bytes); }},
    {.metric = "berth_unread_requests_ended_total",
     .help = "Requests ended because their clients did not read what was sent",
     .field = &Load::set_unread_requests_ended,
     .value = [](const ServerLoad& load) { return load.delivery.ended; }},
    {.field = &Load::set_undelivered_limit_bytes,
     .value = [](const ServerLoad& load) { return load.delivery.limit_bytes; }},
    {.metric = "berth_connections",
     .help = "Open connections of all gRPC ports",
     .field = &Load::set_connections,
     .value = [](const ServerLoad& load) { return load.connections.open; }},
    {.metric = "berth_connections_limit",
     .help = "Most connections that each gRPC port may have open; 0: no limit",
     .field = &Load::set_connections_limit,
     .value = [](const ServerLoad& load) { return load.connections.limit; }},
    {.metric = "berth_connections_refused_total",
     .help = "Connections closed at once because too many were open, in all or from one address",
     .field = &Load::set_connections_refused,
     .value = [](const ServerLoad& load) { return load.connections.refused; }},
};

constexpr LoadFigure kTiers[] = {
    {.metric = "berth_cache_tier_bytes",
     .help = "Bytes outside the arena. host: swapped-out sequences and prefixes; disk: files of sessions and prefixes",
     .labels = {{"tier", "host"}, {"state", "used"}},
     .value =
         [](const ServerLoad& load) {
           return load.engine.host_tier.sequence_bytes + load.engine.host_tier.prefix_bytes;
         }},
    {.metric = "berth_cache_tier_bytes",
     .labels = {{"tier", "host"}, {"state", "free"}},
     .value = [](const ServerLoad& load) { return load.engine.host_tier.free_bytes(); }},
    {.metric = "berth_cache_tier_bytes",
     .labels = {{"tier", "disk"}, {"state", "used"}},
     .value = [](const ServerLoad& load) { return load.sessions.used_bytes + load.engine.prefix_tier.disk_bytes; }},
    {.metric = "berth_cache_tier_bytes",
     .labels = {{"tier", "disk"}, {"state", "free"}},
     .value =
         [](const ServerLoad& load) {
           return std::max<int64_t>(0, load.sessions.limit_bytes - load.sessions.used_bytes) +
                  load.engine.disk_tier_limit_bytes - load.engine.prefix_tier.disk_bytes;
         }},
    {.metric = "berth_session_saves_total",
     .help = "Session files written, by result",
     .labels = {{"result", "ok"}},
     .field = &Load::set_session_saves,
     .value = [](const ServerLoad& load) { return load.sessions.num_saves; }},
    {.metric = "berth_session_saves_total",
     .labels = {{"result", "failed"}},
     .field = &Load::set_failed_session_saves,
     .value = [](const ServerLoad& load) { return load.sessions.num_failed_saves; }},

    {.field = &Load::set_host_tier_bytes,
     .value = [](const ServerLoad& load) { return load.engine.host_tier.sequence_bytes; }},
    {.field = &Load::set_host_tier_limit_bytes,
     .value = [](const ServerLoad& load) { return load.engine.host_tier.limit_bytes; }},
    {.field = &Load::set_session_bytes, .value = [](const ServerLoad& load) { return load.sessions.used_bytes; }},
    {.field = &Load::set_session_limit_bytes,
     .value = [](const ServerLoad& load) { return load.sessions.limit_bytes; }},
    {.field = &Load::set_disk_tier_limit_bytes,
     .value = [](const ServerLoad& load) { return load.engine.disk_tier_limit_bytes; }},
    {.metric = "berth_prefix_tier_bytes",
     .help = "Bytes of prefixes in a tier; berth_cache_tier_bytes includes them",
     .labels = {{"tier", "host"}},
     .field = &Load::set_host_tier_prefix_bytes,
     .value = [](const ServerLoad& load) { return load.engine.host_tier.prefix_bytes; }},
    {.metric = "berth_prefix_tier_bytes",
     .labels = {{"tier", "disk"}},
     .field = &Load::set_disk_tier_bytes,
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.disk_bytes; }},
    {.metric = "berth_prefix_tier_hits_total",
     .help = "Prefixes copied back to the arena from host memory",
     .field = &Load::set_tier_hits,
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.num_hits; }},
    {.metric = "berth_prefix_tier_disk_reads_total",
     .help = "Prefixes read from disk to host memory",
     .field = &Load::set_tier_disk_reads,
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.num_disk_reads; }},
    {.metric = "berth_prefix_tier_restored_tokens_total",
     .help = "Tokens of restored prefixes that the arena no longer held",
     .field = &Load::set_tier_restored_tokens,
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.restored_tokens; }},
    {.metric = "berth_prefix_tier_evictions_total",
     .help = "Prefixes dropped for others, by tier. arena: evicted before they were copied to a tier",
     .labels = {{"tier", "arena"}},
     .field = &Load::set_tier_prefixes_lost,
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.lost; }},
    {.metric = "berth_prefix_tier_evictions_total",
     .labels = {{"tier", "host"}},
     .field = &Load::set_tier_host_evictions,
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.host_evictions; }},
    {.metric = "berth_prefix_tier_evictions_total",
     .labels = {{"tier", "disk"}},
     .field = &Load::set_tier_disk_evictions,
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.disk_evictions; }},
    {.metric = "berth_prefix_tier_errors_total",
     .help = "Prefix files that failed. full, write: not written; torn, foreign: not usable; read: not read",
     .labels = {{"reason", "full"}},
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.full_disk; }},
    {.metric = "berth_prefix_tier_errors_total",
     .labels = {{"reason", "write"}},
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.failed_writes; }},
    {.metric = "berth_prefix_tier_errors_total",
     .labels = {{"reason", "torn"}},
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.torn_files; }},
    {.metric = "berth_prefix_tier_errors_total",
     .labels = {{"reason", "foreign"}},
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.foreign_files; }},
    {.metric = "berth_prefix_tier_errors_total",
     .labels = {{"reason", "read"}},
     .value = [](const ServerLoad& load) { return load.engine.prefix_tier.failed_reads; }},
    {.field = &Load::set_tier_file_errors,
     .value =
         [](const ServerLoad& load) {
           const PrefixTier::Counts& tier = load.engine.prefix_tier;
           return tier.full_disk + tier.failed_writes + tier.torn_files + tier.foreign_files + tier.failed_reads;
         }},
};

constexpr int64_t (*kNoBytes)(const PoolOccupancy&) = [](const PoolOccupancy&) { return int64_t{0}; };

constexpr PoolFigure kPools[] = {
    {.field = &v1::PoolOccupancy::set_unit_bytes, .value = [](const PoolOccupancy& pool) { return pool.unit_bytes; }},
    {.field = &v1::PoolOccupancy::set_live_tokens, .value = [](const PoolOccupancy& pool) { return pool.live_tokens; }},
    {.field = &v1::PoolOccupancy::set_cached_tokens,
     .value = [](const PoolOccupancy& pool) { return pool.cached_tokens; }},
    {.metric = "berth_cache_evictions_total",
     .help = "Units evicted from the prefix cache because a sequence needed their bytes, or because "
             "more states were kept than --state_checkpoint_share allows",
     .field = &v1::PoolOccupancy::set_evicted_units,
     .value = [](const PoolOccupancy& pool) { return pool.evicted_units; }},
    {.metric = "berth_cache_compacted_bytes_total",
     .help = "Bytes moved to join free pieces of the arena",
     .field = &v1::PoolOccupancy::set_compacted_bytes,
     .value = [](const PoolOccupancy& pool) { return pool.compacted_bytes; }},
    {.metric = "berth_cache_units",
     .help = "Units by pool and state. A unit is a block of tokens or the recurrent states of one sequence",
     .labels = {{"state", "live"}},
     .field = &v1::PoolOccupancy::set_live_units,
     .value = [](const PoolOccupancy& pool) { return pool.live_units; }},
    {.metric = "berth_cache_units",
     .labels = {{"state", "shared"}},
     .field = &v1::PoolOccupancy::set_shared_units,
     .value = [](const PoolOccupancy& pool) { return pool.shared_units; }},
    {.metric = "berth_cache_units",
     .labels = {{"state", "cached"}},
     .field = &v1::PoolOccupancy::set_cached_units,
     .value = [](const PoolOccupancy& pool) { return pool.cached_units; }},
    {.metric = "berth_cache_units",
     .labels = {{"state", "free"}},
     .field = &v1::PoolOccupancy::set_free_units,
     .value = [](const PoolOccupancy& pool) { return pool.free_units; }},
    {.metric = "berth_cache_bytes",
     .help = "Arena bytes by pool and state; they add up to berth_cache_arena_bytes. none: bytes of no pool",
     .labels = {{"state", "live"}},
     .field = &v1::PoolOccupancy::set_live_bytes,
     .value = [](const PoolOccupancy& pool) { return pool.bytes(pool.live_units); }},
    {.metric = "berth_cache_bytes",
     .labels = {{"state", "shared"}},
     .field = &v1::PoolOccupancy::set_shared_bytes,
     .value = [](const PoolOccupancy& pool) { return pool.bytes(pool.shared_units); }},
    {.metric = "berth_cache_bytes",
     .labels = {{"state", "cached"}},
     .field = &v1::PoolOccupancy::set_cached_bytes,
     .value = [](const PoolOccupancy& pool) { return pool.bytes(pool.cached_units); }},
    {.metric = "berth_cache_bytes",
     .labels = {{"state", "free"}},
     .field = &v1::PoolOccupancy::set_free_bytes,
     .value = [](const PoolOccupancy& pool) { return pool.bytes(pool.free_units); }},
    // Pools have no overhead, and swapped-out caches are in a tier: berth_cache_tier_bytes.
    {.metric = "berth_cache_bytes", .labels = {{"state", "overhead"}}, .value = kNoBytes},
};

constexpr int64_t (*kNone)(const Occupancy&) = [](const Occupancy&) { return int64_t{0}; };

constexpr ArenaFigure kArena[] = {
    {.metric = "berth_cache_bytes", .labels = {{"pool", "none"}, {"state", "live"}}, .value = kNone},
    {.metric = "berth_cache_bytes", .labels = {{"pool", "none"}, {"state", "shared"}}, .value = kNone},
    {.metric = "berth_cache_bytes", .labels = {{"pool", "none"}, {"state", "cached"}}, .value = kNone},
    {.metric = "berth_cache_bytes",
     .labels = {{"pool", "none"}, {"state", "free"}},
     .field = &v1::CacheOccupancy::set_free_bytes,
     .value = [](const Occupancy& arena) { return arena.unassigned_free_bytes; }},
    {.metric = "berth_cache_bytes",
     .labels = {{"pool", "none"}, {"state", "overhead"}},
     .field = &v1::CacheOccupancy::set_overhead_bytes,
     .value = [](const Occupancy& arena) { return arena.unassigned_overhead_bytes; }},
    {.metric = "berth_cache_arena_bytes",
     .help = "Size of the arena, which holds the whole cache",
     .field = &v1::CacheOccupancy::set_arena_bytes,
     .value = [](const Occupancy& arena) { return arena.arena_bytes; }},
    {.metric = "berth_cache_leases",
     .help = "Leases: sequences that hold cache",
     .field = &v1::CacheOccupancy::set_num_leases,
     .value = [](const Occupancy& arena) { return arena.num_leases; }},
    {.metric = "berth_cache_largest_admissible_tokens",
     .help = "Length of the longest new sequence that fits now",
     .field = &v1::CacheOccupancy::set_largest_admissible_tokens,
     .value = [](const Occupancy& arena) { return arena.largest_admissible_tokens; }},
    {.field = &v1::CacheOccupancy::set_largest_hole_bytes,
     .value = [](const Occupancy& arena) { return arena.largest_hole_bytes; }},
};

template <typename Source, typename Message>
void Fill(absl::Span<const Figure<Source, Message>> figures, const Source& source, Message* message) {
  for (const Figure<Source, Message>& figure : figures) {
    if (figure.field != nullptr) (message->*figure.field)(figure.value(source));
  }
}

}  // namespace

absl::Span<const LoadFigure> EngineFigures() { return kEngine; }
absl::Span<const LoadFigure> TierFigures() { return kTiers; }
absl::Span<const LoadFigure> GrammarFigures() { return kGrammars; }
absl::Span<const LoadFigure> TextFigures() { return kTexts; }
absl::Span<const LoadFigure> DeliveryFigures() { return kDelivery; }
absl::Span<const PoolFigure> PoolFigures() { return kPools; }
absl::Span<const ArenaFigure> ArenaFigures() { return kArena; }

void FillLoad(const ServerLoad& load, v1::GetLoadResponse* response) {
  for (absl::Span<const LoadFigure> figures :
       {EngineFigures(), TierFigures(), GrammarFigures(), TextFigures(), DeliveryFigures()}) {
    Fill(figures, load, response);
  }
  const Occupancy& occupancy = load.engine.occupancy;
  Fill(ArenaFigures(), occupancy, response->mutable_cache());
  for (const PoolOccupancy& pool : occupancy.pools) {
    v1::PoolOccupancy* const to = response->mutable_cache()->add_pools();
    to->set_kind(std::string(CacheKindName(pool.kind)));
    Fill(PoolFigures(), pool, to);
  }
  response->set_tenants(load.tenants.num_tenants);
  for (const TenantShare& share : load.tenants.largest) {
    v1::TenantShare* const to = response->add_tenant_shares();
    to->set_tenant(share.tenant);
    to->set_share(share.share);
    to->set_deficit_tokens(share.deficit);
    to->set_wait_seconds(absl::ToDoubleSeconds(share.wait));
  }
}

}  // namespace berth
