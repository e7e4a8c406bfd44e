#include "train/progress.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <thread>

#include "command/progress.hpp"
#include "plan/report/text_table.hpp"
#include "show/fit.hpp"
#include "show/status_line.hpp"
#include "show/table.hpp"

using namespace muonrt::train;

namespace {

/// Returns the text that `count` steps of 0.1 s each write to a terminal or a log file. The steps
/// follow step `first`.
std::string written(bool terminal, int64_t first, int64_t later_steps, int64_t count = 100) {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  {
    Progress progress(file, {terminal, 60}, {"muon", first, 100, later_steps, 2048});
    for (int64_t i = 1; i <= count; ++i) {
      const double validation = i == 1 ? 31.25 : std::nan("");
      progress.update({first + i, i == 1 ? 30.5 : 3.25, validation, 0, 0.1 * double(i)});
    }
  }
  std::string out;
  std::rewind(file);
  for (int c; (c = std::fgetc(file)) != EOF;) out += static_cast<char>(c);
  std::fclose(file);
  return out;
}

}  // namespace

TEST_CASE("train progress: a log file gets few lines, all complete, and the last step",
          "[unit][train]") {
  // Lines are written after 0.1 s (step 1), after another 5 s (step 51), and at the end. A step
  // processes 2048 tokens.
  CHECK(written(false, 0, 0) ==
        "muon  step 1/100  loss 30.500  val 31.250  0:00:10 left  20480 tokens/s\n"
        "muon  step 51/100  loss 3.250  val 31.250  0:00:05 left  20480 tokens/s\n"
        "muon  step 100/100  loss 3.250  val 31.250  0:00:00 left  20480 tokens/s\n");
  // The speed is computed from the steps of this run. The remaining time covers this run and all
  // later runs.
  CHECK(written(false, 90, 200, 10) ==
        "muon  step 91/100  loss 30.500  val 31.250  0:00:21 left  20480 tokens/s\n"
        "muon  step 100/100  loss 3.250  val 31.250  0:00:20 left  20480 tokens/s\n");
  CHECK(written(false, 0, 0, 0).empty());
}

TEST_CASE("train progress: a terminal shows one line, narrower than it is", "[unit][train]") {
  const std::string all = written(true, 0, 0);
  CHECK(all.substr(all.rfind('\r')) ==
        "\rmuon  step 100/100  loss 3.250  val 31.250  0:00:00 left  2\n");
  CHECK(std::count(all.begin(), all.end(), '\n') == 1);
  CHECK(all.find('\x1b') == std::string::npos);
}

TEST_CASE("table: wide and combining characters have the columns that a terminal gives them",
          "[unit][train]") {
  using muonrt::columns_of;
  CHECK(columns_of("plain") == 5);
  CHECK(columns_of("\xe5\xb1\x82.0") == 4);  // a CJK ideograph occupies two columns
  CHECK(columns_of("e\xcc\x81tat") == 4);    // a combining accent occupies none
  CHECK(columns_of("\xff.0") == 3);          // this is not UTF-8
}

TEST_CASE("table: on a narrow terminal long names continue on the next line", "[unit][train]") {
  using namespace muonrt::tool;
  Table table({{"name", "parameter", Table::Align::kLeft}, {"n", "elements"}});
  table.add({cell::word("model.layers.0.self_attn.q_proj"), cell::count(64)});
  table.add({cell::word("norm"), cell::count(8)});
  const std::string whole =
      "parameter                        elements\n"
      "model.layers.0.self_attn.q_proj        64\n"
      "norm                                    8\n";
  CHECK(table.text(0) == whole);
  CHECK(table.text(41) == whole);
  CHECK(table.text(27) ==
        "parameter          elements\n"
        "model.layers.0.          64\n"
        "self_attn.q_proj\n"
        "norm                      8\n");
  // The table is never narrower than 12 columns.
  CHECK(table.text(5) == table.text(22));
}

TEST_CASE("table: columns that do not fit follow below, after the first one again",
          "[unit][train]") {
  using namespace muonrt::tool;
  Table table({{"rank", "rank"}, {"a", "sent bytes"}, {"b", "received"}, {"c", "state"}});
  table.add({cell::count(0), cell::count(123456), cell::count(7), cell::count(1234567)});
  CHECK(table.text(37) ==
        "rank  sent bytes  received    state\n"
        "   0      123456         7  1234567\n");
  // The header of a column with numbers is the first one to continue on the next line.
  CHECK(table.text(31) ==
        "rank    sent  received    state\n"
        "       bytes\n"
        "   0  123456         7  1234567\n");
  CHECK(table.text(22) ==
        "rank    sent  received\n"
        "       bytes\n"
        "   0  123456         7\n"
        "\n"
        "rank    state\n"
        "   0  1234567\n");
}

TEST_CASE("fitted: sentences and tables of a text have the columns of the terminal",
          "[unit][train]") {
  using muonrt::tool::fitted;
  const std::string text =
      "mesh        fsdp=4\n"
      "method      by shape: gram if it is long, otherwise standard\n"
      "\n"
      "parameter       n\n"
      "\xe5\xb1\x82.weight   128\n"
      "... 3 more\n"
      "\n"
      "warning: two words fit no longer here\n";
  CHECK(fitted(text, 0) == text);
  CHECK(fitted(text, 80) == text);
  CHECK(fitted(text, 32) ==
        "mesh    fsdp=4\n"
        "method  by shape: gram if it is\n"
        "        long, otherwise standard\n"
        "\n"
        "parameter       n\n"
        "\xe5\xb1\x82.weight   128\n"
        "... 3 more\n"
        "\n"
        "warning: two words fit no longer\n"
        "here\n");
}

TEST_CASE("fitted: the description of an option continues below its beginning", "[unit][train]") {
  using muonrt::tool::fitted_help;
  const std::string text =
      "Options:\n"
      "  --rows INT=20               rows of each table, of all that there are\n";
  CHECK(fitted_help(text, 80) == text);
  CHECK(fitted_help(text, 40) ==
        "Options:\n"
        "  --rows INT=20\n"
        "      rows of each table, of all that\n"
        "      there are\n");
}

TEST_CASE("status line: a terminal gets no more columns than it has", "[unit][train]") {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  muonrt::tool::StatusLine line(file, {true, 6});
  line.show("\xe5\xb1\x82\xe5\xb1\x82\xe5\xb1\x82");  // three characters of two columns each
  line.show("a");
  line.clear();
  std::string out;
  std::rewind(file);
  for (int c; (c = std::fgetc(file)) != EOF;) out += static_cast<char>(c);
  std::fclose(file);
  CHECK(out == "\r\xe5\xb1\x82\xe5\xb1\x82\ra   \r \r");
}

TEST_CASE("long work: a terminal shows the part of the work, and nothing at its end",
          "[unit][train]") {
  using muonrt::tool::LongWork;
  for (const bool terminal : {true, false}) {
    std::FILE* const file = std::tmpfile();
    REQUIRE(file != nullptr);
    {
      LongWork work(true, file, {terminal, 60}, std::chrono::milliseconds(0));
      work.show("plan");
      for (int i = 0; i < (terminal ? 600 : 6) && std::ftell(file) == 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    std::string out;
    std::rewind(file);
    for (int c; (c = std::fgetc(file)) != EOF;) out += static_cast<char>(c);
    std::fclose(file);
    CHECK(out.substr(0, 7) == (terminal ? "\rplan (" : ""));
    CHECK((out.empty() || out.back() == '\r'));
  }
}
