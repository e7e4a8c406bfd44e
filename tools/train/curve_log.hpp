#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "train/curve.hpp"

namespace muonrt::train {

/// Writes the curves of all runs while they train: a line of loss.csv after each step, and loss.svg
/// from time to time, so that pictures take at most 5% of the time.
class CurveLog {
 public:
  /// @param folder  must exist. @param title, subtitle  of the picture.
  CurveLog(std::string folder, std::string title, std::string subtitle);

  /// Begins the curve of a run. If `first_step` > 0, continues that of loss.csv, without its later
  /// steps. Throws std::runtime_error if loss.csv then has another optimizer or cannot be read.
  void begin(const std::string& optimizer, int64_t first_step);
  /// Adds the values after a step, or adds those that were not yet known if the last point has the
  /// same step.
  void add(CurvePoint point);
  /// Writes both files. Throws std::runtime_error if a file cannot be written or could not be.
  void finish();

  std::string csv_path() const { return folder_ + "/loss.csv"; }
  std::string svg_path() const { return folder_ + "/loss.svg"; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void restore(int64_t first_step);
  void open_table();
  void write_line();
  void write_picture();

  std::string folder_, title_, subtitle_;
  std::vector<Curve> curves_;
  std::unique_ptr<std::FILE, Close> table_;
  long line_ = 0;         // where the last line of `table_` begins
  double seconds_ = 0.0;  // of the earlier parts of the run
  double next_ = 0.0;     // time of the next picture
  std::string problem_;   // of a file that could not be written
};

}  // namespace muonrt::train
