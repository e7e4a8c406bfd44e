#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "backend/graph_capture.hpp"
#include "backend/normuon.hpp"
#include "pipeline/batches.hpp"
#include "pipeline/exchange_callbacks.hpp"
#include "pipeline/health.hpp"
#include "pipeline/pipeline_context.hpp"
#include "pipeline/span.hpp"
#include "pipeline/span_times.hpp"

namespace muonrt {

/// Message buffers of one chunk in flight; reused by the slots that are congruent to it.
struct MessageBuffers {
  void* gather_send = nullptr;
  void* gather_receive = nullptr;
  void* return_send = nullptr;
  float* sums = nullptr;       // of addends; lives until `commit` has run
  void* directions = nullptr;  // formed of the sums
};

/// What chunks have beside what every stage has; fixed when the optimizer is created.
struct ChunkConfig {
  const std::vector<NewtonSchulz>* newton_schulz = nullptr;  // by group
  const std::vector<NormuonState>* normuon = nullptr;        // by matrix; null: none has NorMuon
  ExchangeCallbacks functions;         // the caller's, for slots that they carry
  CallbackFailure* failure = nullptr;  // where those report
  Health* health = nullptr;            // null: no step measures
};

/// A chunk slot on its way through one rank: gather, orthogonalize, commit. Each stage enqueues and
/// returns; the order of stages is the scheduler's.
class Chunk {
 public:
  /// @param return_receive  where the update lands; alive until `commit` has run.
  /// @param scratch         scratch_bytes of memory for products, shared by all chunks.
  Chunk(const PipelineContext& context, const ChunkConfig& work, const RankChunk& plan,
        const MessageBuffers& buffers, void* return_receive, void* scratch);

  /// Bytes of product scratch that `plan` needs; reserves its products.
  static int64_t scratch_bytes(const PipelineContext& context, const ChunkConfig& work,
                               const RankChunk& plan);

  /// The chunk that used these buffers before; its messages must be gone before they are
  /// overwritten.
  void set_previous_user(const Chunk* previous) { previous_ = previous; }

  /// momentum + pack of the local shard (or its addends), exchange to the owners.
  void gather();
  /// unpack (or sum), Newton-Schulz, pack of the matrices this rank owns, exchange back, forwarding
  /// where the return has two levels; AdamW of the slices it owns.
  void orthogonalize();
  /// One pass over the local shard, and over what is kept here: momentum, decay, update, where the
  /// verdict says so.
  void commit(const StepInputs& run);

  int32_t index() const { return plan_->index; }
  /// Where the sum of each kept thing lies; null if the slot has none.
  const float* sums() const { return buffers_.sums; }
  int64_t owned() const { return static_cast<int64_t>(plan_->owned.size()); }
  /// With the times of the last step.
  template <class Visit>
  void visit_spans(const Visit& visit) const {
    times_.visit(spans_, visit);
  }
  void forget_times() { times_.forget(); }

 private:
  // Equal shapes with equal methods.
  struct Batch {
    const NewtonSchulz* settings = nullptr;
    Method method;
    std::vector<OwnedMatrix> owned;
    std::vector<MatrixBlock> unpack, pack;  // MatrixBlock::matrix counts inside the batch
    MatrixBatch raw;                        // short side first, transport dtype
    BatchBytes bytes;
    std::vector<MatrixBatch> raw_each, result_each;
    std::vector<NormuonState> normuon;  // of each matrix; empty: none has it
    std::vector<NormuonState> lines;    // OrthogonalizeArgs::lines
    void* workspace = nullptr;
    float* lanczos = nullptr;  // workspace, where steps may measure
    MatrixBatch result;
  };
  // Batches that are orthogonalized in lockstep, side by side in the scratch.
  struct BatchGroup {
    std::vector<Batch> batches;
    // Of these batches; the second in steps that measure, where there are any.
    std::optional<Orthogonalization> newton_schulz, measured;
    int32_t span = 0;  // first of its three spans
    bool ran = false;
    std::unique_ptr<DeviceGraph> recording;  // of its Newton-Schulz, where the device records
  };

  static std::vector<BatchGroup> make_batch_groups(const PipelineContext& context,
                                                   const ChunkConfig& work, const RankChunk& plan);
  void bind(Batch& batch, void* scratch);
  Orthogonalization newton_schulz_of(BatchGroup& batch_group, bool measures) const;
  /// One for each; none at all where no matrix has NorMuon.
  std::vector<NormuonState> normuon_of(const std::vector<OwnedMatrix>& owned) const;
  void resolve_messages(const MessageBuffers& buffers, void* return_receive);
  void bind_functions();
  bool moves_gather() const;
  bool moves_return() const;
  void pack_gather();
  void produce();
  void exchange(int32_t span, const Messages& messages);
  void call(int32_t span, BoundCallback& function);
  void exchange_gather();
  void exchange_return();
  void relay();
  void sum();
  void run(BatchGroup& batch_group);
  void run_newton_schulz(BatchGroup& batch_group);
  /// What is done to a batch's result before it is packed.
  void finish(Batch& batch);
  Health::BatchStatistics records(const Batch& batch) const;
  void begin(int32_t span, Stream& stream) { times_.begin(span, stream); }
  void end(int32_t span, Stream& stream) { times_.end(span, stream); }

  const PipelineContext* context_;
  const ChunkConfig* work_;
  const RankChunk* plan_;
  MessageBuffers buffers_;
  void* return_receive_;
  const Chunk* previous_ = nullptr;
  std::vector<BatchGroup> teams_;
  std::vector<NormuonState> normuon_;  // of all that is owned
  std::vector<SendTo> gather_sends_, return_sends_;
  std::vector<ReceiveFrom> gather_receives_, return_receives_;
  std::vector<SendTo> relay_sends_;  // second level of the return
  std::vector<ReceiveFrom> relay_receives_;
  BoundCallback gather_call_, return_call_;  // where the caller's functions carry the slot
  std::unique_ptr<Event> packed_, arrived_, produced_, returned_;
  std::vector<Span> spans_;
  SpanTimes times_;
};

}  // namespace muonrt
