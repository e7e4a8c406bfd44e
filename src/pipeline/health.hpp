#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pipeline/pipeline_context.hpp"
#include "pipeline/replica_hashes.hpp"

namespace muonrt {

/// The statistics of one matrix, expert, part or block. They are equal on all ranks.
struct MatrixHealth {
  int32_t param = 0;
  int64_t index = 0;  // index in the parameter, ordered by expert, then by part
  int64_t rows = 0, cols = 0;
  bool updated = false;  // if false, only weights and gradients have statistics
  // A value is NaN if it was not collected.
  double update_rms = 0, weight_rms = 0;
  double sigma_min = 0, sigma_max = 0, deviation = 0;
  double largest_q = 0;
  int64_t nonfinite = 0;  // number of non-finite elements of the gradient
};

/// Collects statistics in the steps for which they are requested. During the step, the owners
/// collect statistics of the orthogonalized matrices. After the step, every rank adds statistics of
/// its weights, gradients and replicas. One exact sum over the ranks then makes all values
/// available on every rank. The constructor allocates all memory.
class Health {
 public:
  /// @param chunks  Chunks that this rank takes part in.
  Health(const PipelineContext& context, int rank, const std::vector<RankChunk>& chunks);

  /// The addresses of the statistics of a batch. The entries of its matrices are consecutive.
  struct BatchStatistics {
    Lanczos* lanczos;
    Tally* updates;
    Tally* q;  // tally of Q in the Gram form
  };
  /// @param matrix  First matrix of the batch. This rank must own it.
  BatchStatistics batch_statistics_of(int32_t matrix) const;
  /// Like batch_statistics_of(), but returns null pointers if the current step collects no
  /// statistics.
  BatchStatistics active_statistics_of(int32_t matrix) const {
    return collects_ ? batch_statistics_of(matrix) : BatchStatistics{};
  }
  bool collects() const { return collects_; }

  /// Starts a step. If the step collects statistics (`collects`), enqueues work that resets them.
  void begin(bool collects);
  /// Computes the results after a step that collects statistics. Collective; blocks.
  /// @param views    Views of the parameters in host memory.
  /// @param updated  True if the step was committed.
  /// Errors: any error of the streams or of the communicator.
  void finish(const ParamView* views, bool updated);

  const std::vector<MatrixHealth>& matrices() const { return rows_; }
  const ReplicaDifference& difference() const { return difference_; }

 private:
  struct LocalBlock {  // a block of a matrix in the parameter's local buffers
    int32_t param, row;
    int64_t rows, cols, offset, ld;
  };
  void number_matrices();
  void allocate_memory();
  void collect_local(const ParamView* views);
  void hash_replicas(const ParamView* views);
  void fill_words(const ParamView* views, bool updated);
  void reduce();
  void read_words(const ParamView* views, bool updated);
  void synchronize(Stream& stream);

  const PipelineContext* context_;
  int rank_;
  bool collects_ = false;
  std::vector<MatrixHealth> rows_;
  /// For each matrix, the index of its row in rows_; and for each row, its first matrix.
  std::vector<int32_t> row_of_, representative_;
  /// For each matrix, its index in lanczos_, updates_ and q_, or -1.
  std::vector<int32_t> owned_index_;
  int64_t owned_ = 0;
  std::vector<LocalBlock> blocks_;
  /// The gradient's blocks, if its layout differs from that of the parameter.
  std::vector<LocalBlock> grad_blocks_;
  Buffer memory_, host_copy_;  // statistics of this rank, and their copy on the host
  Lanczos* lanczos_ = nullptr;
  Tally* updates_ = nullptr;  // one for each owned matrix, like lanczos_ and q_
  Tally* q_ = nullptr;
  Tally* weights_ = nullptr;  // one for each row, from this rank's blocks
  Tally* gradients_ = nullptr;
  ReplicaHashes replicas_;
  int64_t words_ = 0;  // length of the sum over the ranks
  /// This rank's terms, the sum over the ranks, and a copy of one of them in host memory.
  Buffer own_sum_, total_, host_words_;
  std::unique_ptr<Event> done_;
  ReplicaDifference difference_;
};

}  // namespace muonrt
