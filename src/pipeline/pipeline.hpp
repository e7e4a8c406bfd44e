#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/function_ref.hpp"
#include "pipeline/chunk.hpp"
#include "pipeline/clipping.hpp"
#include "pipeline/health.hpp"
#include "pipeline/pipeline_context.hpp"
#include "pipeline/schedule.hpp"

namespace muonrt {

/// The results of one step in host memory. The streams of the step copy them there, so the host can
/// read them as soon as the step has ended.
struct StepReadback {
  Vote vote_sum;              // sum of all ranks' votes
  Vote confirm_sum;           // eager commit: sum of the second, confirming votes
  Findings findings;          // of this rank
  int64_t vote_sent = 0;      // 1: this rank's vote may have reached its peers
  int64_t vote_returned = 0;  // 1: the reduction of the votes has returned, accepted or not
};

/// The AdamW parameters of this rank, split by how the commit updates them.
struct AdamWParams {
  std::vector<int32_t> whole;      // updated in one pass over the whole local shard
  std::vector<int32_t> by_block;   // updated block by block, because stochastic rounding needs the
                                   // index of each element in the whole tensor
  std::vector<ShardBlock> blocks;  // the blocks of the parameters in `by_block`
};

/// A copy of the tables from host memory to device memory. It is needed only on devices that cannot
/// read the host's tables.
struct TableCopy {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;  // 0: the device reads the host's tables, and nothing is copied
};

/// What a pipeline does in every step apart from the chunks. It is fixed when the optimizer is
/// created.
struct PipelineConfig {
  ChunkConfig chunks;  // without `health` and `failure`, which the pipeline sets
  AdamWParams adamw;
  std::vector<int32_t> held_params;    // every parameter of which this rank holds an element
  std::vector<int32_t> master_params;  // the parameters with f32 master weights on this rank
  ClippingConfig clipping;
  TableCopy table_copy;  // enqueued at the beginning of every step
  bool serial = false;   // run one stage at a time, except gathers that run ahead, for debugging
  bool health = false;   // allocate what steps that collect statistics need
  bool poison = false;   // fill messages and scratch with NaN before every step, so that a read of
                         // memory that was never written shows in the result
};

/// Runs the stages of a step in their fixed order. It owns the chunks, their buffers and the two
/// streams. There is one pipeline class for host and CUDA and for every layout, so that all of them
/// are tested together.
class Pipeline {
 public:
  /// Allocates all memory that a step needs, so that no step allocates.
  /// @param context  streams and results are added here; everything else must be set.
  /// @param chunks   what this rank does for each chunk of the context's plan.
  Pipeline(PipelineContext context, int rank, std::vector<RankChunk> chunks, PipelineConfig config);
  ~Pipeline();

  /// Runs one step that sends nothing and commits nothing, or two if the device captures graphs.
  /// The device then loads its kernels and builds its tables here, and not in the first real step,
  /// in which the other ranks would wait for it. All parameters must be inactive in the tables.
  /// Blocks until the warm-up is complete.
  void warm_up();
  /// Connects the ranks after the warm-up. Collective; blocks, at most for the timeout of the
  /// communicator. Errors: those of the communicator.
  void connect();
  /// Enqueues a whole step. After a fixed number of launches it blocks until the work on the
  /// caller's stream has ended, because a GPU queues a limited number of launches and a full queue
  /// would block without a timeout. `inputs` and the tables must not change until `wait` returns.
  /// Errors: those of local passes and exchanges, and those of caller_stream_error.
  void enqueue(const StepInputs& inputs);
  /// Makes the next step start after the work that is now on the caller's stream.
  /// Errors: as Device::wait_caller_stream.
  /// @param timeout_ms  limit for that work, counted from this call.
  void wait_caller_stream(void* callers_stream, int64_t timeout_ms);
  /// Makes work that is enqueued on the caller's stream from now on wait for the step that was
  /// enqueued last. No effect on the host. Errors: as Device::follow.
  void make_caller_stream_wait(void* callers_stream);
  /// Returns TIMEOUT if the work on the caller's stream did not finish within its limit.
  std::optional<Error> caller_stream_error() const;
  /// Runs `enqueue_work` between two steps, after the work on the caller's stream, and blocks until
  /// what it has enqueued is complete. Errors: as `wait`.
  void run_between_steps(FunctionRef<void(Stream&)> enqueue_work);
  /// Blocks until all work of the step has ended, whether the step was committed or not.
  /// Errors: those of the streams; as caller_stream_error.
  void wait();
  /// Call it after `enqueue` has thrown. It waits until the work that was already enqueued no
  /// longer uses the caller's buffers: first for the caller's stream, up to its timeout, then for
  /// at most one minute. If the caller's stream has timed out, it does not wait any longer.
  void drain_after_error() noexcept;

  /// Commits the step that this rank has staged, after the step failed during its vote (atomic
  /// commit only). Blocks.
  /// @param vote_sum  the sum of the votes, from a rank that has received it.
  void roll_forward(int64_t fingerprint, const Vote& vote_sum);

  const StepReadback& readback() const { return *readback_; }
  const Clipping& clipping() const { return *clipping_; }
  /// Null if no step collects statistics.
  Health* health() const { return health_.get(); }
  /// The first failure of the caller's gather or redistribute functions in the last step.
  const CallbackFailure& callback_failure() const { return callback_failure_; }
  const std::vector<Action>& order() const { return order_; }
  /// Calls `visit(span)` for every timed span of the last step, in no particular order. It does not
  /// allocate, so it may be called after the vote.
  template <class Visit>
  void visit_spans(const Visit& visit) const {
    times_.visit(spans_, visit);
    for (const auto& chunk : chunks_)
      if (chunk) chunk->visit_spans(visit);
  }
  std::vector<Span> spans() const;
  /// Returns what must be added to the times of spans to get nanoseconds of the host's clock,
  /// Deadline::Clock; all calls for one step return the same. On a GPU the first one waits for the
  /// compute stream; the error is half of the shortest of a few round trips to the GPU. Errors:
  /// those of the device.
  int64_t clock_offset() const;
  const Plan& plan() const { return *context_.plan; }
  const std::vector<RankChunk>& rank_chunks() const { return rank_chunks_; }
  /// The gradient sums of a chunk in which this rank takes part; see RankChunk::owner_state.
  const float* sums(int32_t chunk) const { return chunks_[static_cast<size_t>(chunk)]->sums(); }
  int64_t owned_matrices() const { return owned_; }
  int32_t resident_peak() const { return resident_peak_; }
  int64_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  std::vector<int32_t> unpacked() const;
  void make_chunks();
  void clear_times();
  void prepare(const StepInputs& inputs);
  void scan();
  /// @param host_copy       receives the sum for the host.
  /// @param decides_commit  true for the vote that the commits wait for; false for the second vote
  ///     of an eager step, which only reports whether all updates were finite.
  void vote(const StepInputs& inputs, Vote* own, Vote* sum, Vote* host_copy, bool decides_commit);
  void adamw(const StepInputs& inputs);
  void perform(const Action& action, const StepInputs& inputs);
  void count(const Action& action);
  void drain();

  PipelineContext context_;
  int rank_;
  PipelineConfig config_;
  CallbackFailure callback_failure_;
  Findings initial_findings_;  // copied to the device at the beginning of every step
  char* transient_ = nullptr;  // begin of the memory that every step writes before it reads it
  std::unique_ptr<Clipping> clipping_;
  std::unique_ptr<Health> health_;
  std::vector<int32_t> scanned_;  // parameters whose gradients the stage `scan` checks
  std::unique_ptr<Stream> compute_, exchange_;
  Deadline caller_deadline_ = Deadline::in_ms(0);
  std::unique_ptr<Event> callbacks_done_, vote_ready_, vote_received_, finished_;
  std::vector<RankChunk> rank_chunks_;  // only those in which this rank takes part
  Buffer workspace_;
  std::vector<MessageBuffers> message_buffers_;
  void* scratch_ = nullptr;
  Vote* own_vote_ = nullptr;
  Vote* confirm_vote_ = nullptr;
  Vote* confirm_sum_ = nullptr;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // by chunk index; null if not taking part
  std::vector<Action> order_;
  std::vector<Span> spans_;  // scan, vote, adamw, confirm
  SpanTimes times_;
  Buffer readback_buffer_;
  StepReadback* readback_ = nullptr;  // inside readback_buffer_
  int64_t owned_ = 0;
  int32_t resident_ = 0, resident_peak_ = 0;
  std::unique_ptr<Stream> callers_;  // for make_caller_stream_wait; null until its first call
};

}  // namespace muonrt
