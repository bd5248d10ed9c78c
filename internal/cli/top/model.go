package top

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

// order is what tables are sorted by.
type order int

const (
	byUse order = iota
	byHits
	byName
	orders
)

// String is the order's name for people.
func (o order) String() string { return [...]string{"use", "hits", "name"}[o] }

// model is the state of the view.
type model struct {
	take     func() look
	interval time.Duration
	// now is the last look, before the one that its rates count from.
	now, before   look
	order         order
	width, height int
}

func newModel(take func() look, interval time.Duration) model {
	return model{take: take, interval: interval}
}

type (
	lookMsg look
	tickMsg struct{}
)

// Init implements the model of bubbletea.
func (m model) Init() tea.Cmd { return m.look }

func (m model) look() tea.Msg { return lookMsg(m.take()) }

// Update implements the model of bubbletea.
func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case lookMsg:
		m.before, m.now = m.now, look(msg)
		return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return tickMsg{} })
	case tickMsg:
		return m, m.look
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "ctrl+c", "esc":
			return m, tea.Quit
		case "ctrl+z":
			return m, tea.Suspend
		case "s":
			m.order = (m.order + 1) % orders
		}
	}
	return m, nil
}

// View implements the model of bubbletea.
func (m model) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	return v
}

// screen is the text that the terminal has room for. The last line says which keys there are.
func (m model) screen() string {
	if m.width < 1 || m.height < 1 { // not known yet
		return ""
	}
	body := "asking …\n"
	switch {
	case m.now.err != nil:
		body = fmt.Sprintf("%s\n\nIt is asked again every %s.\n", cleanLines(m.now.err.Error()), m.interval)
	case m.now.daemon != nil || m.now.router != nil:
		body = text(m.now, m.before, m.order)
	}
	lines := strings.Split(strings.TrimRight(body, "\n"), "\n")
	if room := m.height - 1; len(lines) > room {
		hidden := len(lines) - max(0, room-1)
		lines = append(lines[:max(0, room-1):max(0, room-1)], fmt.Sprintf("(%d more lines)", hidden))[:room]
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, fmt.Sprintf("q quit   s sort (by %s)   every %s", m.order, m.interval))
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, m.width, "…")
	}
	return strings.Join(lines, "\n")
}
