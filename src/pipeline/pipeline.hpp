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

/// What a step left behind, mirrored to host memory by the stream itself.
struct StepReadback {
  Vote vote_sum;              // the vote
  Vote confirm_sum;           // eager: the second vote
  Findings findings;          // of this rank
  int64_t vote_sent = 0;      // 1: this rank's ballot may have reached its peers
  int64_t vote_returned = 0;  // 1: the reduction of the vote came back
};

/// AdamW's parameters, by index, as the commit takes them.
struct AdamWParams {
  std::vector<int32_t> whole;     // all of what lies here at once
  std::vector<int32_t> by_block;  // by `pieces`, where rounding asks for places in the tensor
  std::vector<ShardBlock> blocks;
};

/// Tables that the host writes where the device cannot read them, and the device's copy.
struct TableCopy {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;  // 0: nothing to copy
};

/// What this rank does in each step beside its slots, and how; fixed when the optimizer is created.
struct PipelineConfig {
  ChunkConfig chunks;  // without health and the functions' failures, which are the pipeline's own
  AdamWParams adamw;
  std::vector<int32_t> held_params;  // every parameter of which something lies here
  ClippingConfig clipping;
  TableCopy table_copy;  // at the beginning of every step
  bool serial = false;   // one stage at a time, for debugging
  bool health = false;   // steps may measure
  bool poison = false;   // messages and scratch are NaN before every step, to find what is read
                         // without having been written
};

/// The driver: chunks, their buffers, the order of stages. One for host and CUDA, for every layout.
class Pipeline {
 public:
  /// Takes all memory of the step. `context` is completed here (results, streams).
  /// @param slots  what this rank does in each, of the context's plan.
  Pipeline(PipelineContext context, int rank, std::vector<RankChunk> rank_chunks,
           PipelineConfig work);
  ~Pipeline();

  /// A step, or two where the device records, that sends nothing and commits nothing: a device
  /// makes what work needs where it meets it first. Every parameter sits out in the tables. Blocks.
  void warm_up();
  /// Enqueues a whole step; blocks until what `join` waits for has ended, once it is some actions
  /// ahead of that. The tables must not change until `wait` returns. Errors: those
  /// of the passes and exchanges, and of `late`.
  void enqueue(const StepInputs& run);
  /// Work of the coming step starts after what the caller has enqueued on a stream of its own.
  /// Errors: as Device::join.
  /// @param timeout_ms  that this may take from now on.
  void wait_caller_stream(void* callers_stream, int64_t timeout_ms);
  /// TIMEOUT, where what `join` waits for has not ended in its time.
  std::optional<Error> caller_stream_error() const;
  /// Between steps: `work` enqueues behind what `join` waits for. Blocks until that has ended.
  /// Errors: as `wait`.
  void run_between_steps(FunctionRef<void(Stream&)> work);
  /// Blocks until the step has ended, however it did. Errors: those of the streams, and of `late`.
  void wait();
  /// After `enqueue` has thrown: waits for what it had enqueued. First for the caller's stream, in
  /// the time that `join` gave it, then a minute at most; behind one that is late, no longer.
  void drain_after_error() noexcept;

  /// After a step that failed inside its vote (atomic commits): what it had staged is committed.
  /// Blocks. @param verdict  the vote's sum, from a rank that has it.
  void roll_forward(int64_t fingerprint, const Vote& vote_sum);

  const StepReadback& readback() const { return *readback_; }
  const Clipping& clipping() const { return *clipping_; }
  /// Null where no step measures.
  Health* health() const { return health_.get(); }
  /// Of a function of the caller's, in the last step.
  const CallbackFailure& callback_failure() const { return callback_failure_; }
  const std::vector<Action>& order() const { return order_; }
  /// Calls `visit(span)` for the timed pieces of the last step, in no particular order. Takes no
  /// memory.
  template <class Visit>
  void visit_spans(const Visit& visit) const {
    times_.visit(spans_, visit);
    for (const auto& chunk : chunks_)
      if (chunk) chunk->visit_spans(visit);
  }
  std::vector<Span> spans() const;
  const std::vector<RankChunk>& rank_chunks() const { return rank_chunks_; }
  /// The sums of a slot in which this rank takes part; see RankChunk::owner_state.
  const float* sums(int32_t slot) const { return chunks_[static_cast<size_t>(slot)]->sums(); }
  int64_t owned_matrices() const { return owned_; }
  int32_t resident_peak() const { return resident_peak_; }
  int64_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  std::vector<int32_t> unpacked() const;
  void make_chunks();
  void prepare(const StepInputs& run);
  void scan();
  void vote(const StepInputs& run, Vote* mine, Vote* sum, Vote* mirror, bool decides_commit);
  void adamw(const StepInputs& run);
  void perform(const Action& action, const StepInputs& run);
  void count(const Action& action);
  void drain();

  PipelineContext context_;
  int rank_;
  PipelineConfig config_;
  CallbackFailure callback_failure_;
  Findings initial_findings_;  // what a step's findings are at its beginning
  char* transient_ = nullptr;  // what a step writes before it reads
  std::unique_ptr<Clipping> clipping_;
  std::unique_ptr<Health> health_;
  std::vector<int32_t> scanned_;
  std::unique_ptr<Stream> compute_, exchange_;
  Deadline caller_deadline_ = Deadline::in_ms(0);
  std::unique_ptr<Event> callbacks_done_, vote_ready_, vote_received_, finished_;
  std::vector<RankChunk> rank_chunks_;  // those this rank takes part in
  Buffer workspace_;
  std::vector<MessageBuffers> message_buffers_;
  void* scratch_ = nullptr;
  Vote* own_vote_ = nullptr;  // this rank's
  Vote* confirm_vote_ = nullptr;
  Vote* confirm_sum_ = nullptr;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // by world slot; null where not taking part
  std::vector<Action> order_;
  std::vector<Span> spans_;  // scan, vote, adamw, outcome
  SpanTimes times_;
  Buffer readback_buffer_;
  StepReadback* readback_ = nullptr;  // in mirror_
  int64_t owned_ = 0;
  int32_t resident_ = 0, resident_peak_ = 0;
};

}  // namespace muonrt
