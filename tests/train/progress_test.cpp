#include "train/progress.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <memory>

using namespace muonrt::train;

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

class Captured {
 public:
  Captured() : file_(std::tmpfile()) { REQUIRE(file_ != nullptr); }
  ~Captured() { std::fclose(file_); }
  std::FILE* file() { return file_; }
  std::string text() {
    std::string out;
    std::rewind(file_);
    for (int c; (c = std::fgetc(file_)) != EOF;) out += static_cast<char>(c);
    return out;
  }

 private:
  std::FILE* file_;
};

const ProgressOptions kOptions{
    .label = "muon", .steps = 100, .tokens_per_step = 2048, .line_seconds = 5.0};
const ProgressReport kReport{
    .step = 12, .train_loss = 2.3456, .val_loss = 2.5, .optimizer_ms = 6.25, .exposed_ms = 1.2};

// What a terminal shows: each carriage return starts the line anew over what is there.
std::string shown_line(const std::string& written) {
  std::string line;
  size_t at = 0;
  for (const char c : written) {
    if (c == '\r') {
      at = 0;
    } else if (c == '\n') {
      line.clear();
      at = 0;
    } else {
      if (at == line.size()) line += ' ';
      line[at++] = c;
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

}  // namespace

TEST_CASE("train progress: a line has what is known, and only that", "[unit][train]") {
  CHECK(progress_line(kOptions, kReport, 41234.0, 75.0, 0) ==
        "muon  step 12/100  loss 2.346  val 2.500  1:15 left  41.2k tok/s  "
        "optimizer 6.2 ms (1.2 exposed)");
  CHECK(progress_line(kOptions, {.step = 12, .train_loss = 2.3456, .optimizer_ms = 6.25}, kNone,
                      kNone, 0) == "muon  step 12/100  loss 2.346  optimizer 6.2 ms");
}

TEST_CASE("train progress: no line is as wide as the terminal", "[unit][train]") {
  for (int width = 1; width < 130; ++width) {
    const std::string line = progress_line(kOptions, kReport, 41234.0, 75.0, width);
    CHECK(int(line.size()) <= std::max(1, width - 1));
  }
  CHECK(progress_line(kOptions, kReport, 41234.0, 75.0, 40) == "muon  step 12/100  loss 2.346");
}

TEST_CASE("train progress: a log file gets whole lines, seldom, and the last step",
          "[unit][train]") {
  Captured out;
  {
    Progress progress(out.file(), {false, 80}, kOptions);
    for (int64_t step = 1; step <= 100; ++step) {
      progress.update_at({.step = step, .train_loss = 3.0}, 0.1 * double(step));
    }
    progress.message("note");
  }
  // At 0.1 s, then each 5 s: steps 1 and 51; then the end. 2048 tokens in 0.1 s.
  CHECK(out.text() ==
        "muon  step 1/100  loss 3.000  0:10 left  20.5k tok/s\n"
        "muon  step 51/100  loss 3.000  0:05 left  20.5k tok/s\n"
        "note\n"
        "muon  step 100/100  loss 3.000  0:00 left  20.5k tok/s\n");
}

TEST_CASE("train progress: a terminal shows one line that leaves nothing behind", "[unit][train]") {
  Captured out;
  Progress progress(out.file(), {true, 200}, kOptions);
  progress.update_at(
      {.step = 1, .train_loss = 30.5, .val_loss = 31.25, .optimizer_ms = 10.0, .exposed_ms = 2.0},
      1.0);
  CHECK(shown_line(out.text()) ==
        "muon  step 1/100  loss 30.500  val 31.250  1:39 left  2.0k tok/s  "
        "optimizer 10.0 ms (2.0 exposed)");
  progress.update_at({.step = 2, .train_loss = 3.5}, 2.0);
  CHECK(shown_line(out.text()) == "muon  step 2/100  loss 3.500  1:38 left  2.0k tok/s");
  progress.message("saved");
  CHECK(out.text().find("saved\n") != std::string::npos);
  CHECK(shown_line(out.text()).empty());
  progress.update_at({.step = 3, .train_loss = 3.25}, 2.01);  // too soon to redraw
  CHECK(shown_line(out.text()).empty());
  progress.finish();
  const std::string all = out.text();
  CHECK(all.back() == '\n');
  CHECK(all.find("step 3/100") != std::string::npos);
  progress.finish();
  CHECK(out.text() == all);
  CHECK(all.find('\x1b') == std::string::npos);
}

TEST_CASE("train progress: time left counts the runs that follow", "[unit][train]") {
  Captured out;
  ProgressOptions options = kOptions;
  options.later_steps = 200;
  Progress progress(out.file(), {false, 80}, options);
  progress.update_at({.step = 10, .train_loss = 3.0}, 10.0);
  CHECK(out.text() == "muon  step 10/100  loss 3.000  4:50 left  2.0k tok/s\n");
}

TEST_CASE("train progress: a resumed run is as fast as its own steps", "[unit][train]") {
  Captured out;
  ProgressOptions options = kOptions;
  options.first_step = 90;
  Progress progress(out.file(), {false, 80}, options);
  progress.update_at({.step = 91, .train_loss = 3.0}, 2.0);
  CHECK(out.text() == "muon  step 91/100  loss 3.000  0:18 left  1.0k tok/s\n");
}

TEST_CASE("train progress: a file is no terminal, and a run without a step prints nothing",
          "[unit][train]") {
  Captured out;
  CHECK_FALSE(detect_screen(out.file()).terminal);
  { Progress progress(out.file(), detect_screen(out.file()), kOptions); }
  CHECK(out.text().empty());
}
