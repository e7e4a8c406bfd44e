#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "train/curve.hpp"

namespace muonrt::train {

/// Writes the curves of all runs during the training. Writes a line of loss.csv after each step.
/// Limits how often it draws loss.svg, so that drawing takes at most 5% of the time.
class CurveLog {
 public:
  /// @param folder  an existing folder.
  /// @param title, subtitle  texts for the picture.
  CurveLog(std::string folder, std::string title, std::string subtitle);

  /// Begins the curve of a run. If `first_step` > 0, continues the curve in loss.csv and removes
  /// its later steps. In this case, throws std::runtime_error if loss.csv cannot be read or
  /// contains the curve of another optimizer.
  void begin(const std::string& optimizer, int64_t first_step);
  /// Adds the values after a step. If the last point has the same step, only adds values that are
  /// missing from it.
  void add(CurvePoint point);
  /// Writes both files. Throws std::runtime_error if a file cannot be written, or if an earlier
  /// write failed.
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
  long line_ = 0;         // position of the last line of `table_`
  double seconds_ = 0.0;  // duration of the earlier parts of the run
  double next_ = 0.0;     // time when the next picture is due
  std::string problem_;   // error of a file that could not be written
};

}  // namespace muonrt::train
