#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pipeline/pipeline_context.hpp"
#include "pipeline/replica_hashes.hpp"

namespace muonrt {

/// What a health step found of one matrix (an expert, a part, a block); the same on every rank.
struct MatrixHealth {
  int32_t param = 0;
  int64_t index = 0;  // of its parameter's matrices: expert by expert, part by part
  int64_t rows = 0, cols = 0;
  bool updated = false;  // by this step; else only weights and gradients were measured
  // NaN where there is nothing to tell.
  double update_rms = 0, weight_rms = 0;
  double sigma_min = 0, sigma_max = 0, deviation = 0;
  double largest_q = 0;
  int64_t nonfinite = 0;  // elements of the gradient
};

/// Statistics of the steps that ask for them. In the step the owners measure what Newton-Schulz
/// gave; when it has ended, every rank its weights, gradients and replicas, and one exact sum over
/// the ranks gives all of it to each. Memory is taken at creation.
class Health {
 public:
  /// @param slots  this rank's.
  Health(const PipelineContext& context, int rank, const std::vector<RankChunk>& chunks);

  /// Where what the owner measures of a batch goes; matrices of a batch are neighbours.
  struct BatchStatistics {
    Lanczos* lanczos;
    Tally* updates;
    Tally* q;  // of the Gram form
  };
  /// @param matrix  the batch's first, one that this rank owns.
  BatchStatistics batch_statistics_of(int32_t matrix) const;
  /// Null pointers in a step that does not measure.
  BatchStatistics records(int32_t matrix) const {
    return measures_ ? batch_statistics_of(matrix) : BatchStatistics{};
  }
  bool measures() const { return measures_; }

  /// Enqueues what comes before a step.
  void begin(bool measures);
  /// After a step that measured. Collective; blocks.
  /// @param views    the table of parameters as the host reads it.
  /// @param updated  the step was committed.
  /// Errors: those of the streams and of the communicator.
  void finish(const ParamView* views, bool updated);

  const std::vector<MatrixHealth>& matrices() const { return rows_; }
  const ReplicaDifference& difference() const { return difference_; }

 private:
  struct LocalBlock {  // of a matrix, in the parameter's local buffers
    int32_t param, row;
    int64_t rows, cols, offset, ld;
  };
  void number_matrices();
  void allocate_memory();
  void measure_local(const ParamView* views);
  void hash_replicas(const ParamView* views);
  void fill_words(const ParamView* views, bool updated);
  void reduce();
  void read_words(const ParamView* views, bool updated);
  void synchronize(Stream& stream);

  const PipelineContext* context_;
  int rank_;
  bool measures_ = false;
  std::vector<MatrixHealth> rows_;
  std::vector<int32_t> row_of_, representative_;  // by matrix: its row; by row: the matrix shown
  std::vector<int32_t> record_of_;                // by matrix: -1 where another rank owns it
  int64_t owned_ = 0;
  std::vector<LocalBlock> blocks_;
  std::vector<LocalBlock> grad_blocks_;  // gradients that lie elsewhere than their parameters
  Buffer memory_, mirror_;               // what the device measures, and its copy for the host
  Lanczos* lanczos_ = nullptr;
  Tally* updates_ = nullptr;  // by record
  Tally* q_ = nullptr;
  Tally* weights_ = nullptr;  // by row, this rank's part
  Tally* gradients_ = nullptr;
  ReplicaHashes replicas_;
  int64_t words_ = 0;  // of the sum
  Buffer mine_, all_, exchanged_;
  std::unique_ptr<Event> done_;
  ReplicaDifference difference_;
};

}  // namespace muonrt
