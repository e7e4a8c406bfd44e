#include "train/curve_log.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "opt_json/output_file.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::train {

namespace {

constexpr double kPictureSeconds = 5.0;  // minimum time between two pictures
constexpr double kPictureShare = 0.05;   // maximum share of the time for pictures

/// Returns the number in a field of the table, or NaN if the field is empty.
template <class T>
bool read(const std::string& field, T& to) {
  if (field.empty() && std::is_floating_point_v<T>) {
    to = static_cast<T>(std::nan(""));
    return true;
  }
  const char* const end = field.data() + field.size();
  const auto done = std::from_chars(field.data(), end, to);
  return done.ec == std::errc() && done.ptr == end;
}

/// Parses a line of the table. If the line is invalid, returns nothing.
std::optional<CurvePoint> point_of(const std::string& line, std::string& optimizer) {
  std::vector<std::string> fields;
  std::istringstream words(line);
  for (std::string word; std::getline(words, word, ',');) fields.push_back(word);
  CurvePoint p;
  if (fields.size() != 6 || !read(fields[0], p.step) || !read(fields[2], p.train_loss) ||
      !read(fields[3], p.val_loss) || !read(fields[4], p.tokens) || !read(fields[5], p.seconds))
    return std::nullopt;
  optimizer = fields[1];
  return p;
}

/// Returns the line for a point.
std::string line_of(const Curve& curve, const CurvePoint& point) {
  const std::string table = curves_csv({{curve.optimizer, {point}}});
  return table.substr(table.find('\n') + 1);
}

}  // namespace

CurveLog::CurveLog(std::string folder, std::string title, std::string subtitle)
    : folder_(std::move(folder)), title_(std::move(title)), subtitle_(std::move(subtitle)) {}

void CurveLog::begin(const std::string& optimizer, int64_t first_step) {
  curves_.push_back({optimizer, {}});
  seconds_ = next_ = 0.0;
  if (first_step > 0) restore(first_step);
  open_table();
}

void CurveLog::restore(int64_t first_step) {
  Curve& curve = curves_.back();
  std::error_code none;
  if (!std::filesystem::exists(csv_path(), none)) return;
  std::string text = tool::read_text(csv_path());
  text.resize(text.rfind('\n') + 1);  // a killed run may leave an incomplete line
  std::istringstream lines(text);
  std::string line;
  const std::string head = curves_csv({});
  bool good = text.empty() || (std::getline(lines, line) && line + "\n" == head);
  while (good && std::getline(lines, line)) {
    std::string optimizer;
    const auto point = point_of(line, optimizer);
    good = point && (curve.points.empty() || curve.points.back().step < point->step);
    if (good && optimizer != curve.optimizer)
      throw std::runtime_error("--out: " + csv_path() + " is the curve of " + optimizer +
                               ", but the resumed run has " + curve.optimizer +
                               "; use another folder");
    if (good && point->step <= first_step) curve.points.push_back(*point);
  }
  if (!good)
    throw std::runtime_error("--out: " + csv_path() + ": line '" + line +
                             "' is not of a loss curve; use another folder");
  if (!curve.points.empty()) seconds_ = curve.points.back().seconds;
}

/// Writes all points so far, and keeps the table open for the next point.
void CurveLog::open_table() {
  table_.reset();
  tool::write_text_file(csv_path(), curves_csv(curves_));
  table_.reset(std::fopen(csv_path().c_str(), "r+"));
  if (table_) std::fseek(table_.get(), 0, SEEK_END);
  const std::vector<CurvePoint>& points = curves_.back().points;
  line_ = table_ ? std::ftell(table_.get()) : 0;
  if (!points.empty()) line_ -= static_cast<long>(line_of(curves_.back(), points.back()).size());
}

void CurveLog::add(CurvePoint point) {
  std::vector<CurvePoint>& points = curves_.back().points;
  point.seconds += seconds_;
  if (!points.empty() && points.back().step == point.step) {
    CurvePoint& last = points.back();
    if (!std::isnan(point.train_loss)) last.train_loss = point.train_loss;
    if (!std::isnan(point.val_loss)) last.val_loss = point.val_loss;
    last.seconds = std::max(last.seconds, point.seconds);
  } else {
    points.push_back(point);
    if (table_ && std::fseek(table_.get(), 0, SEEK_END) == 0) line_ = std::ftell(table_.get());
  }
  write_line();
  if (now() < next_) return;
  const double began = now();
  try {
    write_picture();
  } catch (const std::exception& e) {
    problem_ = e.what();
  }
  const double took = now() - began;
  next_ = now() + std::max(kPictureSeconds, took / kPictureShare);
}

/// Writes the line of the last point. It replaces an earlier line for the same step.
void CurveLog::write_line() {
  const std::string line = line_of(curves_.back(), curves_.back().points.back());
  std::FILE* const file = table_.get();
  if (!file || std::fseek(file, line_, SEEK_SET) != 0 ||
      std::fwrite(line.data(), 1, line.size(), file) != line.size() || std::fflush(file) != 0)
    problem_ = "--out: " + csv_path() + " cannot be written: " + std::strerror(errno);
}

void CurveLog::write_picture() {
  tool::write_text_file(svg_path(), curves_svg(curves_, title_, subtitle_));
}

void CurveLog::finish() {
  table_.reset();
  tool::write_text_file(csv_path(), curves_csv(curves_));
  write_picture();
  if (!problem_.empty()) throw std::runtime_error(problem_);
}

}  // namespace muonrt::train
