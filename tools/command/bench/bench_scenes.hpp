#pragma once

#include <string>
#include <vector>

#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

/// A pass of a step over `elements` elements or fewer: what it reads and writes, in a device's
/// memory.
class ElementwiseScene {
 public:
  enum class Data {
    kMuon,        // a bf16 parameter with master and momentum, its bf16 gradient, a message
    kRemainder,   // the same, a remainder of 16 bits in the master's place
    kStochastic,  // the same without either, rounded at random
    kAdamW,       // with a master and a variance
    kTall,        // a matrix that is stored transposed, and a message
    kMatrix,      // 4096 x 11008, or as much of it as the elements are enough for
  };
  ElementwiseScene(Workbench& bench, Data data, int64_t elements);

  /// Rows and columns, as they are packed.
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t elements() const { return rows_ * cols_; }
  /// All that the passes write, without the padding of rows.
  std::vector<unsigned char> result();

  void copy();
  void pack_direction();
  void scan();
  void commit_muon();
  void commit_adamw();
  void unpack();
  void pack();
  void normalize();

 private:
  void make_parameter(Data data);
  void make_matrices();

  Workbench* bench_;
  int64_t rows_ = 0, cols_ = 0;
  std::vector<Piece> pieces_;
  std::vector<int32_t> list_ = {0};
  ParamView view_;
  ParamView* params_ = nullptr;
  MuonScalars* groups_ = nullptr;
  AdamScalars* adam_ = nullptr;
  Findings* findings_ = nullptr;
  Ballot* sum_ = nullptr;
  void *message_ = nullptr, *other_ = nullptr;
  std::vector<Owned> owned_;
  std::vector<MatrixPiece> placed_;
  MatrixBatch matrix_, normal_;
};

struct ElementwisePass {
  const char* name;
  int64_t bytes;  // moved for each element
  ElementwiseScene::Data data;
  void (ElementwiseScene::*enqueue)();
};
/// A copy first.
const std::vector<ElementwisePass>& elementwise_passes();

}  // namespace muonrt::tool
