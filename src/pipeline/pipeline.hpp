#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/function_ref.hpp"
#include "pipeline/chunk.hpp"
#include "pipeline/clipping.hpp"
#include "pipeline/context.hpp"
#include "pipeline/health.hpp"
#include "pipeline/schedule.hpp"

namespace muonrt {

/// What a step left behind, mirrored to host memory by the stream itself.
struct Outcome {
  Ballot verdict;            // the vote
  Ballot outcome;            // eager: the second vote
  Findings findings;         // of this rank
  int64_t vote_entered = 0;  // 1: this rank's ballot may have reached its peers
  int64_t vote_passed = 0;   // 1: the reduction of the vote came back
};

/// AdamW's parameters, by index, as the commit takes them.
struct AdamWork {
  std::vector<int32_t> whole;    // all of what lies here at once
  std::vector<int32_t> indexed;  // by `pieces`, where rounding asks for places in the tensor
  std::vector<Piece> pieces;
};

/// Tables that the host writes where the device cannot read them, and the device's copy.
struct TableCopy {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;  // 0: nothing to copy
};

/// What this rank does in each step beside its slots, and how; fixed when the optimizer is created.
struct StepWork {
  ChunkWork chunks;  // without health and the functions' failures, which are the pipeline's own
  AdamWork adamw;
  std::vector<int32_t> held;  // every parameter of which something lies here
  ClippingWork clipping;
  TableCopy copy;       // at the beginning of every step
  bool serial = false;  // one stage at a time, for debugging
  bool health = false;  // steps may measure
  bool poison = false;  // messages and scratch are NaN before every step, to find what is read
                        // without having been written
};

/// The driver: chunks, their buffers, the order of stages. One for host and CUDA, for every layout.
class Pipeline {
 public:
  /// Takes all memory of the step. `context` is completed here (results, streams).
  /// @param slots  what this rank does in each, of the context's plan.
  Pipeline(Context context, int rank, std::vector<SlotPlan> slots, StepWork work);
  ~Pipeline();

  /// A step, or two where the device records, that sends nothing and commits nothing: a device
  /// makes what work needs where it meets it first. Every parameter sits out in the tables. Blocks.
  void rehearse();
  /// Enqueues a whole step; blocks until what `join` waits for has ended, once it is some actions
  /// ahead of that. The tables must not change until `wait` returns. Errors: those
  /// of the passes and exchanges, and of `late`.
  void enqueue(const StepRun& run);
  /// Work of the coming step starts after what the caller has enqueued on a stream of its own.
  /// Errors: as Device::join.
  /// @param timeout_ms  that this may take from now on.
  void join(void* callers_stream, int64_t timeout_ms);
  /// TIMEOUT, where what `join` waits for has not ended in its time.
  std::optional<Error> late() const;
  /// Between steps: `work` enqueues behind what `join` waits for. Blocks until that has ended.
  /// Errors: as `wait`.
  void run_now(FunctionRef<void(Stream&)> work);
  /// Blocks until the step has ended, however it did. Errors: those of the streams, and of `late`.
  void wait();
  /// After `enqueue` has thrown: waits for what it had enqueued. First for the caller's stream, in
  /// the time that `join` gave it, then a minute at most; behind one that is late, no longer.
  void abandon() noexcept;

  /// After a step that failed inside its vote (atomic commits): what it had staged is committed.
  /// Blocks. @param verdict  the vote's sum, from a rank that has it.
  void roll_forward(int64_t stamp, const Ballot& verdict);

  const Outcome& outcome() const { return *outcome_; }
  const Clipping& clipping() const { return *clipping_; }
  /// Null where no step measures.
  Health* health() const { return health_.get(); }
  /// Of a function of the caller's, in the last step.
  const FunctionFailure& function_failure() const { return function_failure_; }
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
  const std::vector<SlotPlan>& slots() const { return slots_; }
  /// The sums of a slot in which this rank takes part; see SlotPlan::owner_state.
  const float* sums(int32_t slot) const { return chunks_[static_cast<size_t>(slot)]->sums(); }
  int64_t owned_matrices() const { return owned_; }
  int32_t resident_peak() const { return resident_peak_; }
  int64_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  std::vector<int32_t> unpacked() const;
  void make_chunks();
  void prepare(const StepRun& run);
  void scan();
  void vote(const StepRun& run, Ballot* mine, Ballot* sum, Ballot* mirror, bool binding);
  void adamw(const StepRun& run);
  void perform(const Action& action, const StepRun& run);
  void count(const Action& action);
  void drain();

  Context context_;
  int rank_;
  StepWork work_;
  FunctionFailure function_failure_;
  Findings start_;             // what a step's findings are at its beginning
  char* transient_ = nullptr;  // what a step writes before it reads
  std::unique_ptr<Clipping> clipping_;
  std::unique_ptr<Health> health_;
  std::vector<int32_t> scanned_;
  std::unique_ptr<Stream> compute_, exchange_;
  Deadline join_deadline_ = Deadline::in_ms(0);
  std::unique_ptr<Event> called_, voted_, verdict_in_, finished_;
  std::vector<SlotPlan> slots_;  // those this rank takes part in
  Buffer workspace_;
  std::vector<MessageBuffers> message_buffers_;
  void* scratch_ = nullptr;
  Ballot* ballot_ = nullptr;  // this rank's
  Ballot* second_ballot_ = nullptr;
  Ballot* second_verdict_ = nullptr;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // by world slot; null where not taking part
  std::vector<Action> order_;
  std::vector<Span> spans_;  // scan, vote, adamw, outcome
  SpanTimes times_;
  Buffer mirror_;
  Outcome* outcome_ = nullptr;  // in mirror_
  int64_t owned_ = 0;
  int32_t resident_ = 0, resident_peak_ = 0;
};

}  // namespace muonrt
