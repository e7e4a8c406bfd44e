#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "backend/graph_capture.hpp"
#include "backend/normuon.hpp"
#include "pipeline/active_messages.hpp"
#include "pipeline/batches.hpp"
#include "pipeline/exchange_callbacks.hpp"
#include "pipeline/health.hpp"
#include "pipeline/pipeline_context.hpp"
#include "pipeline/span.hpp"
#include "pipeline/span_times.hpp"

namespace muonrt {

/// The message buffers of one chunk in flight. Chunks whose indices are equal modulo the window
/// share the buffers.
struct MessageBuffers {
  void* gather_send = nullptr;
  void* gather_receive = nullptr;
  void* return_send = nullptr;
  float* sums = nullptr;       // sums of partial gradients; valid until `commit` has run
  void* directions = nullptr;  // directions that are computed from the sums
};

/// The objects that chunks use in addition to PipelineContext. They do not change after creation.
struct ChunkConfig {
  const std::vector<NewtonSchulz>* newton_schulz = nullptr;  // indexed by group
  const std::vector<NormuonState>* normuon = nullptr;        // by matrix ID; null: no NorMuon
  ExchangeCallbacks callbacks;         // exchange the chunks that have RankChunk::callbacks
  CallbackFailure* failure = nullptr;  // the callbacks report errors here
  Health* health = nullptr;            // null if no step collects statistics
  bool omit_inactive = false;          // steps may set StepInputs::omits_inactive
};

/// Runs the stages of one chunk on one rank: gather, orthogonalize, commit. Each stage enqueues its
/// work and returns. `schedule` defines the order of the stages.
class Chunk {
 public:
  /// @param return_receive  Receives the update; valid until `commit` has run.
  /// @param scratch         scratch_bytes() of memory for products, shared by all chunks.
  Chunk(const PipelineContext& context, const ChunkConfig& config, const RankChunk& plan,
        const MessageBuffers& buffers, void* return_receive, void* scratch);

  /// Returns the bytes of scratch memory that the products of `plan` need. Also reserves the ops'
  /// memory for these products (Ops::reserve()).
  static int64_t scratch_bytes(const PipelineContext& context, const ChunkConfig& config,
                               const RankChunk& plan);

  /// Sets the chunk that uses the same buffers before this chunk. This chunk does not write the
  /// buffers until the exchanges of `previous` have ended.
  void set_previous_user(const Chunk* previous) { previous_ = previous; }

  /// Packs the directions of the local shard, or its partial gradients, and sends them to the
  /// owners.
  void gather(const StepInputs& inputs);
  /// Unpacks or sums the gathered messages, orthogonalizes the matrices that this rank owns,
  /// computes AdamW for its slices, and sends the updates to their holders. If the return has
  /// two levels, also forwards updates of other owners.
  void orthogonalize(const StepInputs& inputs);
  /// If the commit condition passes, writes the momentum and applies decay and update, for the
  /// local shard and for the owner state.
  void commit(const StepInputs& inputs);

  int32_t index() const { return plan_->index; }
  /// Returns the gradient sums of the owner state; null if the chunk has none.
  const float* sums() const { return buffers_.sums; }
  int64_t owned() const { return static_cast<int64_t>(plan_->owned.size()); }
  /// Calls `visit(span)` for every span of the chunk, with the times of the last step.
  template <class Visit>
  void visit_spans(const Visit& visit) const {
    times_.visit(spans_, visit);
  }
  void clear_times() { times_.clear(); }

 private:
  // Matrices of equal shape and method.
  struct Batch {
    const NewtonSchulz* settings = nullptr;
    Method method;
    std::vector<OwnedMatrix> owned;
    std::vector<MatrixBlock> unpack, pack;  // MatrixBlock::matrix is the index in the batch
    MatrixBatch raw;                        // short side first, transport dtype
    BatchBytes bytes;
    std::vector<MatrixBatch> raw_each, result_each;
    std::vector<NormuonState> normuon;  // one for each matrix; empty if no matrix has NorMuon
    std::vector<NormuonState> lines;    // OrthogonalizeArgs::lines
    void* workspace = nullptr;
    float* lanczos = nullptr;  // workspace for statistics, if steps may collect them
    MatrixBatch result;
  };
  // Batches that are orthogonalized in lockstep and share the scratch memory.
  struct BatchGroup {
    std::vector<Batch> batches;
    // `with_statistics` is used in steps that collect statistics.
    std::optional<Orthogonalization> newton_schulz, with_statistics;
    int32_t span = 0;                    // index of the first of its three spans
    bool ran = false;                    // true if newton_schulz has run without a graph
    std::unique_ptr<DeviceGraph> graph;  // graph of newton_schulz, if the device captures graphs
  };

  static std::vector<BatchGroup> make_batch_groups(const PipelineContext& context,
                                                   const ChunkConfig& config,
                                                   const RankChunk& plan);
  void bind(Batch& batch, void* scratch);
  Orthogonalization newton_schulz_of(BatchGroup& batch_group, bool with_statistics) const;
  /// Returns one state for each matrix, or an empty list if no matrix has NorMuon.
  std::vector<NormuonState> normuon_of(const std::vector<OwnedMatrix>& owned) const;
  void resolve_messages(const MessageBuffers& buffers, void* return_receive);
  void bind_callbacks();
  void select_gather(const StepInputs& inputs);
  void select_return(const StepInputs& inputs);
  void pack_gather(bool rests);
  void produce(const StepInputs& inputs);
  void exchange(int32_t span, const Messages& messages);
  void call(int32_t span, std::vector<BoundCallback>& callbacks);
  bool rests(const StepInputs& inputs) const;
  void exchange_gather();
  void exchange_return();
  void relay();
  void sum();
  void run(BatchGroup& batch_group);
  void run_newton_schulz(BatchGroup& batch_group);
  /// Applies NorMuon to the result of a batch and collects the statistics of the result. Call this
  /// function before the result is packed.
  void finish(Batch& batch);
  Health::BatchStatistics statistics_of(const Batch& batch) const;
  void begin(int32_t span, Stream& stream) { times_.begin(span, stream); }
  void end(int32_t span, Stream& stream) { times_.end(span, stream); }

  const PipelineContext* context_;
  const ChunkConfig* config_;
  const RankChunk* plan_;
  MessageBuffers buffers_;
  void* return_receive_;
  const Chunk* previous_ = nullptr;
  std::vector<BatchGroup> batch_groups_;
  std::vector<NormuonState> normuon_;  // one for each owned matrix
  // The messages in each direction. A step with omits_inactive sends only a part of them.
  ActiveMessages sent_by_gather_, received_by_gather_, sent_by_return_, received_by_return_;
  std::vector<SendTo> gather_sends_, return_sends_;
  std::vector<ReceiveFrom> gather_receives_, return_receives_;
  std::vector<SendTo> relay_sends_;  // second level of the return
  std::vector<ReceiveFrom> relay_receives_;
  std::vector<BoundCallback> gather_callbacks_, return_callbacks_;
  std::unique_ptr<Event> packed_, arrived_, produced_, returned_;
  std::vector<Span> spans_;
  SpanTimes times_;
};

}  // namespace muonrt
