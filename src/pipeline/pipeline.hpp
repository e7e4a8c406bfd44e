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

/// The results of a step in host memory. The streams of the step copy them there, so the host can
/// read them as soon as the step is complete.
struct StepReadback {
  Vote vote_sum;              // sum of all ranks' votes
  Vote confirm_sum;           // sum of the second, confirming votes of an eager commit
  Findings findings;          // findings of this rank
  int64_t vote_sent = 0;      // 1 if this rank's vote may have reached its peers
  int64_t vote_returned = 0;  // 1 if the reduction of the votes has returned, accepted or not
};

/// The AdamW parameters of this rank, grouped by how the commit updates them.
struct AdamWParams {
  std::vector<int32_t> whole;  // parameters that are updated in one pass over the local shard
  /// Parameters that are updated block by block, because stochastic rounding needs the index of
  /// each element in the whole tensor.
  std::vector<int32_t> by_block;
  std::vector<ShardBlock> blocks;  // the blocks of the parameters in `by_block`
};

/// A copy of the tables from host memory to device memory, for devices that cannot read the host's
/// tables.
struct TableCopy {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;  // 0 if the device reads the host's tables
};

/// The work that a pipeline does in every step besides the chunks of its plan, fixed when the
/// optimizer is created.
struct PipelineConfig {
  ChunkConfig chunks;  // the pipeline sets `health` and `failure`
  AdamWParams adamw;
  std::vector<int32_t> held_params;    // every parameter that has elements on this rank
  std::vector<int32_t> master_params;  // parameters with f32 master weights on this rank
  ClippingConfig clipping;
  TableCopy table_copy;  // enqueued at the beginning of every step
  bool serial = false;   // for debugging: runs one stage at a time, except gathers of later chunks
  bool health = false;   // allocates the memory for collecting statistics
  /// Fills messages and scratch memory with NaN before every step. If an op reads memory that was
  /// never written, its result then becomes NaN.
  bool poison = false;
};

/// Runs the stages of a step in a fixed order. Holds the chunks, their buffers and the two streams.
/// Both backends use this class for all layouts, so every test covers it.
class Pipeline {
 public:
  /// Allocates all memory that a step needs, so that steps do not allocate.
  /// @param context  The pipeline sets the streams and the results; the caller sets everything
  ///     else.
  /// @param chunks   This rank's work for each chunk of the plan in `context`.
  Pipeline(PipelineContext context, int rank, std::vector<RankChunk> chunks, PipelineConfig config);
  ~Pipeline();

  /// Runs one step that sends nothing and commits nothing, or two such steps if the device captures
  /// graphs. The device thus loads its kernels and builds its tables before the first real step.
  /// Otherwise, the other ranks would have to wait for this work during the first step. All
  /// parameters must be inactive in the tables. Blocks until the warm-up is complete.
  void warm_up();
  /// Connects the ranks after the warm-up. Collective. Blocks for at most the timeout of the
  /// communicator. Errors: any error of the communicator.
  void connect();
  /// Enqueues a whole step. `inputs` and the tables must not change until `wait` returns. A GPU
  /// queues a limited number of launches, and a launch into a full queue would block without a
  /// timeout. After a fixed number of launches, this function therefore blocks until the work on
  /// the caller's stream is complete.
  /// Errors: any error of a local pass, of an exchange, or of caller_stream_error().
  void enqueue(const StepInputs& inputs);
  /// Makes the next step start after the work that is now on the caller's stream.
  /// Errors: the same as Device::wait_caller_stream().
  /// @param timeout_ms  Maximum time to wait for that work, counted from this call.
  void wait_caller_stream(void* callers_stream, int64_t timeout_ms);
  /// Makes all work that the caller enqueues on its stream after this call wait for the step that
  /// was enqueued last. Does nothing on the host. Errors: the same as Device::follow().
  void make_caller_stream_wait(void* callers_stream);
  /// Returns TIMEOUT if the work on the caller's stream did not finish within the limit that was
  /// passed to wait_caller_stream().
  std::optional<Error> caller_stream_error() const;
  /// Calls `enqueue_work` between two steps, after the work on the caller's stream, and blocks
  /// until the enqueued work is complete. Errors: the same as wait().
  void run_between_steps(FunctionRef<void(Stream&)> enqueue_work);
  /// Blocks until all work of the step is complete, whether the step was committed or not.
  /// Errors: any error of the streams, and the error that caller_stream_error() returns.
  void wait();
  /// Call this function after enqueue() has thrown. Waits until the work that was already enqueued
  /// no longer uses the caller's buffers: first for the caller's stream, up to its timeout, and
  /// then for the work of the step, for at most one minute. Does not wait if the caller's stream
  /// has already timed out.
  void drain_after_error() noexcept;

  /// Commits the step that this rank has staged, after the step has failed during its vote.
  /// Requires atomic commits. Blocks.
  /// @param vote_sum  Sum of the votes, from a rank that has received it.
  void roll_forward(int64_t fingerprint, const Vote& vote_sum);

  const StepReadback& readback() const { return *readback_; }
  const Clipping& clipping() const { return *clipping_; }
  /// Returns null if no step collects statistics.
  Health* health() const { return health_.get(); }
  /// Returns the first failure of the caller's gather or redistribute functions in the last step.
  const CallbackFailure& callback_failure() const { return callback_failure_; }
  const std::vector<Action>& order() const { return order_; }
  /// Calls `visit(span)` for every timed span of the last step, in any order. Does not allocate, so
  /// it may be called after the vote.
  template <class Visit>
  void visit_spans(const Visit& visit) const {
    times_.visit(spans_, visit);
    for (const auto& chunk : chunks_)
      if (chunk) chunk->visit_spans(visit);
  }
  std::vector<Span> spans() const;
  /// Returns the offset that converts the times of spans to nanoseconds of the host's clock,
  /// Deadline::Clock. The offset is stored, so all calls for one step return the same value. On a
  /// GPU, the first call waits for the compute stream and then measures several round trips to the
  /// GPU; the error is at most half of the shortest one. Errors: any error of the device.
  int64_t clock_offset() const;
  const Plan& plan() const { return *context_.plan; }
  const std::vector<RankChunk>& rank_chunks() const { return rank_chunks_; }
  /// Returns the gradient sums of a chunk that this rank takes part in; see RankChunk::owner_state.
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
  /// @param host_copy       Receives a copy of the sum for the host.
  /// @param decides_commit  True for the vote that the commits wait for. False for the second vote
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
  char* transient_ = nullptr;  // start of the memory that every step writes before reading it
  std::unique_ptr<Clipping> clipping_;
  std::unique_ptr<Health> health_;
  std::vector<int32_t> scanned_;  // parameters whose gradients `scan` checks
  std::unique_ptr<Stream> compute_, exchange_;
  Deadline caller_deadline_ = Deadline::in_ms(0);
  std::unique_ptr<Event> callbacks_done_, vote_ready_, vote_received_, finished_;
  std::vector<RankChunk> rank_chunks_;  // only chunks that this rank takes part in
  Buffer workspace_;
  std::vector<MessageBuffers> message_buffers_;
  void* scratch_ = nullptr;
  Vote* own_vote_ = nullptr;
  Vote* confirm_vote_ = nullptr;
  Vote* confirm_sum_ = nullptr;
  /// One for each chunk index; null if this rank does not take part in the chunk.
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<Action> order_;
  std::vector<Span> spans_;  // the spans of scan, vote, adamw and confirm
  SpanTimes times_;
  Buffer readback_buffer_;
  StepReadback* readback_ = nullptr;  // points into readback_buffer_
  int64_t owned_ = 0;
  int32_t resident_ = 0, resident_peak_ = 0;
  std::unique_ptr<Stream> callers_;  // used by make_caller_stream_wait(); null before its first
                                     // call
};

}  // namespace muonrt
