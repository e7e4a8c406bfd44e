#pragma once

#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

/// What is wrong with orthogonalized batches, by the images of 16 random directions on either side
/// of every matrix, W O and V O^T, which the device makes in plain loops whatever its products:
///
/// * elements that are not finite, such as those of a tile that was never stored. Of other
///   matrices:
/// * those that are not near orthogonal: singular values lie in [0.5, 1.3], but for the smallest of
///   a matrix, so |W O| / |W| does; of zeros those whose images are not zero;
/// * groups of 32 rows or columns whose images are further from those of the first results seen,
///   another provider's, than roundings take them: one wrong tile of 128 x 128 takes groups of 8192
///   lines apart by 0.18 of their size.
class NsCheck {
 public:
  explicit NsCheck(bool zeros) : zeros_(zeros) {}
  bool has_seen() const { return !first_.empty(); }
  /// @param results  of the same work each time.
  int64_t wrong(Workbench& bench, const std::vector<MatrixBatch>& results);

 private:
  static constexpr int64_t kDirections = 16;  // the rows of a block of the plain loops on a GPU

  /// From one side: for each matrix and direction, a value for each line.
  struct Images {
    int64_t lines = 0;
    std::vector<float> values;
    double at(int64_t matrix, int64_t d, int64_t line) const {
      return double{values[static_cast<size_t>((matrix * kDirections + d) * lines + line)]};
    }
  };
  struct Seen {
    Images sides[2];           // W O, V O^T
    std::vector<bool> finite;  // all images of a matrix
  };
  static Images images(Workbench& bench, const MatrixBatch& o, bool left);
  static Seen look(Workbench& bench, const MatrixBatch& o);
  bool near_orthogonal(const Images& left, int64_t rows, int64_t matrix) const;
  static int64_t wrong_groups(const Images& now, const Images& first, int64_t matrix, int64_t rows,
                              double unit);

  bool zeros_;
  std::vector<Seen> first_;  // by batch
};

}  // namespace muonrt::tool
