#include <algorithm>
#include <cmath>
#include <map>

#include "show/svg.hpp"
#include "train/curve.hpp"
#include "train/format.hpp"

namespace muonrt::train {

namespace svg = tool::svg;
using svg::line, svg::text;

namespace {

constexpr double kWidth = 900, kHeight = 560;
constexpr double kLeft = 72, kTop = 84, kBottom = 498;
constexpr double kCharacter = 8.0;  // width of one, on the safe side; no font can be asked
constexpr double kLabelGap = 17;    // least distance of two end labels

// Okabe and Ito's colours, told apart with any kind of colour vision.
constexpr const char* kColours[] = {"#0072B2", "#D55E00", "#009E73",
                                    "#CC79A7", "#E69F00", "#56B4E9"};

struct Sample {
  int64_t step;
  double mean, lowest, highest;
};
using Line = std::vector<Sample>;

struct Group {
  std::string name;
  std::string colour;
  size_t runs = 0;
  Line train, validation;
};

Line over_runs(const std::map<int64_t, std::vector<double>>& values) {
  Line line;
  for (const auto& [step, list] : values) {
    double sum = 0.0;
    for (const double value : list) sum += value;
    const auto [low, high] = std::minmax_element(list.begin(), list.end());
    line.push_back({step, sum / static_cast<double>(list.size()), *low, *high});
  }
  return line;
}

// Mean over `width` samples that end at each one.
Line moving_mean(const Line& line, size_t width) {
  Line smooth = line;
  double sum = 0.0;
  for (size_t i = 0; i < line.size(); ++i) {
    sum += line[i].mean;
    if (i >= width) sum -= line[i - width].mean;
    smooth[i].mean = sum / static_cast<double>(std::min(i + 1, width));
  }
  return smooth;
}

std::vector<Group> group_curves(const std::vector<Curve>& curves) {
  std::vector<Group> groups;
  for (const Curve& first : curves) {
    const bool known = std::any_of(groups.begin(), groups.end(),
                                   [&](const Group& g) { return g.name == first.optimizer; });
    if (known) continue;
    Group group;
    group.name = first.optimizer;
    group.colour = kColours[groups.size() % std::size(kColours)];
    std::map<int64_t, std::vector<double>> train, validation;
    for (const Curve& curve : curves) {
      if (curve.optimizer != first.optimizer) continue;
      ++group.runs;
      for (const CurvePoint& point : curve.points) {
        if (std::isfinite(point.train_loss)) train[point.step].push_back(point.train_loss);
        if (std::isfinite(point.val_loss)) validation[point.step].push_back(point.val_loss);
      }
    }
    group.train = over_runs(train);
    group.validation = over_runs(validation);
    groups.push_back(std::move(group));
  }
  return groups;
}

const Line& labelled_line(const Group& group) {
  return group.validation.empty() ? group.train : group.validation;
}

std::string end_label(const Group& group) {
  const Line& line = labelled_line(group);
  return line.empty() ? "" : group.name + " " + fixed(line.back().mean, 3);
}

double nice_step(double span, int ticks) {
  const double raw = span / ticks;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= raw * 0.999) return factor * power;
  }
  return 10.0 * power;
}

struct Axes {
  double right = 780;  // of the plot; the end labels stand beyond it
  double x_high = 1.0;
  double y_low = 0.0, y_high = 1.0, y_step = 0.2;
  double x(int64_t step) const {
    return kLeft + (right - kLeft) * static_cast<double>(step) / x_high;
  }
  double y(double loss) const {
    return kBottom - (kBottom - kTop) * (loss - y_low) / (y_high - y_low);
  }
};

// The first losses would leave no room for the differences that matter, so the top of the axis is
// the largest loss after the first tenth of the steps.
Axes choose_axes(const std::vector<Group>& groups) {
  Axes axes;
  for (const Group& group : groups) {
    const double label = kCharacter * 1.1 * static_cast<double>(end_label(group).size());
    axes.right = std::max(kWidth / 2, std::min(axes.right, kWidth - 16 - label));
    for (const Line* line : {&group.train, &group.validation}) {
      if (!line->empty()) {
        axes.x_high = std::max(axes.x_high, static_cast<double>(line->back().step));
      }
    }
  }
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const Group& group : groups) {
    for (const Line* line : {&group.train, &group.validation}) {
      for (const Sample& sample : *line) {
        low = std::min(low, line == &group.train ? sample.mean : sample.lowest);
        if (static_cast<double>(sample.step) >= 0.1 * axes.x_high) {
          high = std::max(high, line == &group.train ? sample.mean : sample.highest);
        }
      }
    }
  }
  if (!(low < HUGE_VAL)) return axes;
  if (!(high > low)) high = low + 1.0;
  axes.y_step = nice_step(high - low, 6);
  axes.y_low = std::floor(low / axes.y_step) * axes.y_step;
  axes.y_high = std::ceil(high / axes.y_step) * axes.y_step;
  return axes;
}

std::string at(double value) { return fixed(value, 1); }

std::string draw_axes(const Axes& axes) {
  std::string out;
  const int decimals = axes.y_step < 0.1 ? 2 : axes.y_step < 1.0 ? 1 : 0;
  const bool quarter = std::fabs(axes.y_step * 4 - std::round(axes.y_step * 4)) < 1e-9 &&
                       std::fabs(axes.y_step * 10 - std::round(axes.y_step * 10)) > 1e-9;
  const auto count = std::lround((axes.y_high - axes.y_low) / axes.y_step);
  for (long i = 0; i <= count; ++i) {
    const double value = axes.y_low + static_cast<double>(i) * axes.y_step;
    out += line(kLeft, axes.y(value), axes.right, axes.y(value), "stroke=\"#E3E3E3\"");
    out += text(kLeft - 10, axes.y(value) + 4.5, "text-anchor=\"end\"",
                fixed(value, quarter ? 2 : decimals));
  }
  const double step = std::max(1.0, nice_step(axes.x_high, 8));
  for (double value = 0.0; value <= axes.x_high * 1.0001; value += step) {
    const double x = axes.x(std::llround(value));
    out += line(x, kBottom, x, kBottom + 6, "stroke=\"#555555\"");
    out += text(x, kBottom + 23, "text-anchor=\"middle\"", std::to_string(std::llround(value)));
  }
  out += line(kLeft, kBottom, axes.right, kBottom, "stroke=\"#555555\"");
  out += text((kLeft + axes.right) / 2, kBottom + 46, "text-anchor=\"middle\"", "step");
  const double middle = (kTop + kBottom) / 2;
  out += "<text transform=\"translate(24 " + at(middle) +
         ") rotate(-90)\" text-anchor=\"middle\">loss (nats per byte)</text>\n";
  return out;
}

std::string polyline(const Axes& axes, const Line& line, const std::string& attributes) {
  std::string points;
  for (const Sample& s : line) points += at(axes.x(s.step)) + "," + at(axes.y(s.mean)) + " ";
  return svg::polyline(points, attributes);
}

std::string band(const Axes& axes, const Group& group) {
  std::string points;
  const Line& line = group.validation;
  for (const Sample& s : line) points += at(axes.x(s.step)) + "," + at(axes.y(s.highest)) + " ";
  for (auto s = line.rbegin(); s != line.rend(); ++s) {
    points += at(axes.x(s->step)) + "," + at(axes.y(s->lowest)) + " ";
  }
  return "<polygon points=\"" + points + "\" fill=\"" + group.colour +
         "\" fill-opacity=\"0.18\" stroke=\"none\"/>\n";
}

std::string train_style(const Group& group) {
  return "stroke=\"" + group.colour + "\" stroke-width=\"1.3\" stroke-opacity=\"0.5\"";
}

std::string validation_style(const Group& group) {
  return "stroke=\"" + group.colour + "\" stroke-width=\"2.6\" stroke-linejoin=\"round\"";
}

// Name and last loss of each optimizer at the right end of its line.
std::string draw_end_labels(const Axes& axes, const std::vector<Group>& groups) {
  struct Label {
    double y;
    const Group* group;
  };
  std::vector<Label> labels;
  for (const Group& group : groups) {
    if (labelled_line(group).empty()) continue;
    const double y = axes.y(labelled_line(group).back().mean);
    labels.push_back({std::clamp(y, kTop, kBottom), &group});
  }
  std::sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) { return a.y < b.y; });
  for (size_t i = 1; i < labels.size(); ++i) {
    labels[i].y = std::max(labels[i].y, labels[i - 1].y + kLabelGap);
  }
  const double below = labels.empty() ? 0.0 : std::max(0.0, labels.back().y - (kBottom - 4));
  std::string out;
  for (const Label& label : labels) {
    out +=
        text(axes.right + 9, label.y - below + 4.5,
             "font-weight=\"600\" fill=\"" + label.group->colour + "\"", end_label(*label.group));
  }
  return out;
}

// What the kinds of line mean, in grey; the colours are named by the end labels. In the upper right
// corner, where falling curves are not.
std::string draw_legend(const Axes& axes, const std::vector<Group>& groups, size_t width) {
  struct Entry {
    std::string mark, label;
  };
  std::vector<Entry> entries;
  const Group grey{"", "#666666", 0, {}, {}};
  size_t most_runs = 0;
  for (const Group& group : groups) most_runs = std::max(most_runs, group.runs);
  const std::string of_runs =
      most_runs > 1 ? ", mean of " + std::to_string(most_runs) + " runs" : "";
  const std::string of_steps = width > 1 ? ", mean of " + std::to_string(width) + " steps" : "";
  entries.push_back({line(0, 0, 30, 0, validation_style(grey)), "validation" + of_runs});
  if (most_runs > 1) {
    entries.push_back({"<rect x=\"0\" y=\"-6\" width=\"30\" height=\"12\" fill=\"" + grey.colour +
                           "\" fill-opacity=\"0.25\"/>\n",
                       "validation, lowest to highest run"});
  }
  entries.push_back({line(0, 0, 30, 0, train_style(grey)), "training" + of_steps});
  size_t longest = 0;
  for (const Entry& entry : entries) longest = std::max(longest, entry.label.size());
  const double x = axes.right - 44 - kCharacter * static_cast<double>(longest);
  double y = kTop + 16;
  std::string out = "<rect x=\"" + at(x - 12) + "\" y=\"" + at(kTop + 2) + "\" width=\"" +
                    at(axes.right - x + 12) + "\" height=\"" +
                    at(21.0 * static_cast<double>(entries.size()) + 6) +
                    "\" fill=\"white\" fill-opacity=\"0.9\"/>\n";
  for (const Entry& entry : entries) {
    out += "<g transform=\"translate(" + at(x) + " " + at(y) + ")\">" + entry.mark;
    out += text(40, 4.5, "fill=\"#444444\"", entry.label) + "</g>\n";
    y += 21;
  }
  return out;
}

}  // namespace

std::string curves_svg(const std::vector<Curve>& curves, const std::string& title,
                       const std::string& subtitle) {
  std::vector<Group> groups = group_curves(curves);
  size_t longest = 0;
  for (const Group& group : groups) longest = std::max(longest, group.train.size());
  const size_t width = std::max<size_t>(1, longest / 40);
  for (Group& group : groups) group.train = moving_mean(group.train, width);
  const Axes axes = choose_axes(groups);

  std::string out = svg::begin(kWidth, kHeight, 13.5, "#222222");
  out += text(kLeft - 48, 34, "font-size=\"20\" font-weight=\"600\"", title);
  out += text(kLeft - 48, 58, "fill=\"#555555\"", subtitle);
  out += draw_axes(axes);
  out += "<clipPath id=\"plot\"><rect x=\"" + at(kLeft) + "\" y=\"" + at(kTop) + "\" width=\"" +
         at(axes.right - kLeft) + "\" height=\"" + at(kBottom - kTop) + "\"/></clipPath>\n";
  out += "<g clip-path=\"url(#plot)\">\n";
  for (const Group& group : groups) out += polyline(axes, group.train, train_style(group));
  for (const Group& group : groups) {
    if (group.runs > 1) out += band(axes, group);
    out += polyline(axes, group.validation, validation_style(group));
  }
  out += "</g>\n";
  out += draw_legend(axes, groups, width);
  out += draw_end_labels(axes, groups);
  return out + svg::kEnd;
}

}  // namespace muonrt::train
