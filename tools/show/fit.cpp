#include "show/fit.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "plan/report/text_table.hpp"
#include "show/status_line.hpp"

namespace muonrt::tool {

namespace {

constexpr size_t kGap = 2;
/// The minimum width of a column of names.
constexpr size_t kNarrowest = 12;

using Texts = std::vector<std::string>;

Texts characters_of(const std::string& text) {
  Texts out;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0) == 0x80 && !out.empty()) {
      out.back() += c;
    } else {
      out.emplace_back(1, c);
    }
  }
  return out;
}

/// Breaks text into lines of at most `width` columns, after one of `separators` if possible.
/// @param hard  whether to break words that are longer than a line.
Texts wrapped(const std::string& text, size_t width, const char* separators, bool hard) {
  Texts lines(1);
  for (const std::string& character : characters_of(text)) {
    std::string& line = lines.back();
    if (line.empty() || character == " " || columns_of(line + character) <= width) {
      line += character;
      continue;
    }
    const size_t blank = line.find_last_of(' ');
    const size_t separator = blank != std::string::npos ? blank : line.find_last_of(separators);
    if (separator == std::string::npos && !hard) {
      line += character;
      continue;
    }
    const size_t cut = separator == std::string::npos ? line.size() : separator + 1;
    const std::string rest = line.substr(cut) + character;
    line.resize(cut);
    lines.push_back(rest);
  }
  for (std::string& line : lines) line.resize(line.find_last_not_of(' ') + 1);
  return lines;
}

/// Wraps a sentence. Indents all lines except the first by `hang` blanks.
std::string sentence(const std::string& text, size_t width, size_t hang) {
  const size_t indent = std::min(text.find_first_not_of(' '), text.size());
  const std::string blanks(std::min(hang, width / 2), ' ');
  const size_t room = width - std::max(indent < width ? indent : 0, blanks.size());
  std::string out;
  for (const std::string& line : wrapped(text.substr(indent), room, " ", false))
    out += (out.empty() ? std::string(indent, ' ') : blanks) + line + '\n';
  return out;
}

size_t widest(const Texts& texts) {
  size_t out = 0;
  for (const std::string& text : texts) out = std::max(out, columns_of(text));
  return out;
}

struct Width {
  size_t natural = 0, least = 0;
};

std::vector<Width> widths_of(const Grid& grid) {
  std::vector<Width> out(grid.right.size());
  for (size_t c = 0; c < out.size(); ++c) {
    Width& width = out[c];
    size_t cells = 0;
    for (const Texts& row : grid.rows) cells = std::max(cells, columns_of(row[c]));
    width.natural = grid.width.empty() ? cells : std::max(cells, grid.width[c]);
    width.least = std::min(cells, kNarrowest);
    if (!grid.right[c]) continue;
    // Do not wrap numbers.
    width.least = widest(wrapped(grid.rows[0][c], 1, " ", false));
    for (size_t r = 1; r < grid.rows.size(); ++r)
      width.least = std::max(width.least, columns_of(grid.rows[r][c]));
  }
  return out;
}

/// Returns the widths of these table columns. If possible, the sum of the widths is `width`.
std::vector<size_t> fit_columns(const Grid& grid, const std::vector<Width>& widths,
                                const std::vector<size_t>& shown, size_t width) {
  std::vector<size_t> out;
  for (const size_t c : shown) out.push_back(widths[c].natural);
  size_t total = std::accumulate(out.begin(), out.end(), kGap * (out.size() - 1));
  // First reduce columns of numbers.
  for (const bool right : {true, false}) {
    for (; width > 0 && total > width; --total) {
      size_t most = shown.size();
      for (size_t i = 0; i < shown.size(); ++i)
        if (grid.right[shown[i]] == right && out[i] > widths[shown[i]].least &&
            (most == shown.size() || out[i] > out[most]))
          most = i;
      if (most == shown.size()) break;
      --out[most];
    }
  }
  return out;
}

std::string columns_text(const Grid& grid, const std::vector<size_t>& shown,
                         const std::vector<size_t>& widths) {
  std::string out;
  for (const Texts& row : grid.rows) {
    std::vector<Texts> cells;
    size_t lines = 1;
    for (size_t i = 0; i < shown.size(); ++i) {
      const bool right = grid.right[shown[i]];
      cells.push_back(wrapped(row[shown[i]], widths[i], right ? " " : " ,./_-", !right));
      lines = std::max(lines, cells.back().size());
    }
    for (size_t l = 0; l < lines; ++l) {
      std::string line;
      for (size_t i = 0; i < shown.size(); ++i) {
        const std::string text = l < cells[i].size() ? cells[i][l] : "";
        const std::string blanks(widths[i] - std::min(widths[i], columns_of(text)), ' ');
        line += (i > 0 ? std::string(kGap, ' ') : "") +
                (grid.right[shown[i]] ? blanks + text : text + blanks);
      }
      line.resize(line.find_last_not_of(' ') + 1);
      out += line + '\n';
    }
  }
  return out;
}

/// Returns the table that the lines form. If they have no common columns, the table is empty.
Grid grid_of(const Texts& lines) {
  std::vector<Texts> cells;  // by terminal column; the second column of a wide character is ""
  size_t width = 0;
  for (const std::string& line : lines) {
    Texts& row = cells.emplace_back();
    for (const std::string& character : characters_of(line)) {
      const size_t columns = columns_of(character);
      if (columns == 0 && !row.empty()) row.back() += character;
      if (columns > 0) row.push_back(character);
      if (columns > 1) row.emplace_back();
    }
    width = std::max(width, row.size());
  }
  std::vector<size_t> begins, ends;
  size_t blanks = kGap;
  for (size_t at = 0; at < width; ++at) {
    const bool blank = std::all_of(cells.begin(), cells.end(), [&](const Texts& row) {
      return at >= row.size() || row[at] == " ";
    });
    if (!blank && blanks >= kGap) begins.push_back(at);
    if (blank && blanks == kGap - 1) ends.push_back(at - (kGap - 1));
    blanks = blank ? blanks + 1 : 0;
  }
  ends.resize(begins.size(), width);
  Grid grid;
  for (size_t c = 0; c < begins.size(); ++c) {
    bool right = true;
    for (size_t r = 0; r < cells.size(); ++r) {
      std::string text;
      for (size_t at = begins[c]; at < std::min(ends[c], cells[r].size()); ++at)
        text += cells[r][at];
      text.resize(text.find_last_not_of(' ') + 1);
      right = right && (text.empty() || begins[c] + columns_of(text) == ends[c]);
      if (c == 0) grid.rows.emplace_back();
      grid.rows[r].push_back(text);
    }
    // If all cells of a column have the same length, it is a column of names.
    bool indented = false;
    for (Texts& row : grid.rows) indented = indented || row[c][0] == ' ';
    grid.right.push_back(right && indented);
    if (!grid.right.back()) continue;
    for (Texts& row : grid.rows) row[c].erase(0, row[c].find_first_not_of(' '));
  }
  return grid;
}

bool fits(const std::string& line, size_t width) { return columns_of(line) <= width; }

/// Fits the lines between two empty lines.
std::string fitted_block(const Texts& lines, size_t width) {
  const auto is_row = [](const std::string& line) { return line.rfind("... ", 0) != 0; };
  Texts rows;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(rows), is_row);
  std::string out;
  const Grid grid = grid_of(rows);
  const bool is_table = grid.right.size() > 1 && (rows.size() > 1 || grid.right.size() == 2);
  if (is_table) {
    out += grid_text(grid, width);
  }
  for (const std::string& line : lines) {
    if (is_table && is_row(line)) continue;
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    out += fits(line, width) ? line + '\n' : sentence(line, width, indent);
  }
  return out;
}

}  // namespace

size_t output_width() {
  const Screen screen = detect_screen(stdout);
  const char* const text = std::getenv("COLUMNS");
  const bool chosen = text && std::atoi(text) > 0;
  return screen.terminal || chosen ? static_cast<size_t>(screen.width) : 0;
}

std::string grid_text(const Grid& grid, size_t width) {
  const std::vector<Width> widths = widths_of(grid);
  std::string out;
  for (size_t next = 0; next < widths.size();) {
    std::vector<size_t> shown;
    size_t total = 0;
    if (next > 0) {
      shown = {0};
      total = widths[0].least;
    }
    const size_t repeated = shown.size();
    for (; next < widths.size(); ++next) {
      total += widths[next].least + (shown.empty() ? 0 : kGap);
      // Show at least one more column next to the first one.
      if (width > 0 && total > width && shown.size() > std::max<size_t>(repeated, 1)) break;
      shown.push_back(next);
    }
    out += (out.empty() ? "" : "\n") +
           columns_text(grid, shown, fit_columns(grid, widths, shown, width));
  }
  return out;
}

std::string fitted(const std::string& text, size_t width) {
  if (width == 0) return text;
  std::string out;
  Texts block;
  const auto end_block = [&] {
    const bool fit = std::all_of(block.begin(), block.end(),
                                 [&](const std::string& line) { return fits(line, width); });
    if (!fit) {
      out += fitted_block(block, width);
    } else {
      for (const std::string& line : block) out += line + '\n';
    }
    block.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) block.push_back(text.substr(at, end - at));
    if (end == at) {
      end_block();
      out += '\n';
    }
    at = end + 1;
  }
  end_block();
  if (!text.empty() && text.back() != '\n') out.pop_back();
  return out;
}

std::string fitted_help(const std::string& text, size_t width) {
  constexpr size_t kColumn = 30, kWide = 80;
  if (width == 0) return text;
  const size_t hang = width < kWide ? 6 : kColumn;
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const bool two = indent < kColumn && line.size() > kColumn && line[kColumn - 1] == ' ' &&
                     line[kColumn] != ' ' && indent > 0;
    if (fits(line, width)) {
      out += line + '\n';
    } else if (indent == kColumn || (two && hang < kColumn)) {
      std::string name = line.substr(0, two ? kColumn : 0);
      name.resize(name.find_last_not_of(' ') + 1);
      out += (name.empty() ? "" : sentence(name, width, indent)) +
             sentence(std::string(hang, ' ') + line.substr(kColumn), width, hang);
    } else {
      out += sentence(line, width, two ? kColumn : indent);
    }
  }
  return out;
}

void print_fitted(const std::string& text) {
  const std::string out = fitted(text, output_width());
  std::fwrite(out.data(), 1, out.size(), stdout);
}

}  // namespace muonrt::tool
