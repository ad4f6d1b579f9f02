"""The page in a browser: no text lies on another, all of it can be read in light and dark, nothing is fetched."""

import json
import re
import shutil
import subprocess

import pytest
from tests.planning import operators as ops
from tests.planning.graphs import Builder

import nbxtensor as nbx
from nbxtensor.cli.figures import figures
from nbxtensor.cli.page import page
from nbxtensor.cli.targets import named
from nbxtensor.planning.plan import plan

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
HERE = pytest.mark.skipif(BROWSER is None, reason=f"no browser here: {', '.join(BROWSERS)}")

# Reads what the browser laid out and writes it, as JSON, where the document's text is dumped from.
LOOK = """
<script>
function colour(text){const n=text.match(/[\\d.]+/g).map(Number);return n.length>3&&n[3]===0?null:n.slice(0,3)}
function light(c){const l=c.map(v=>v/255).map(v=>v<=.03928?v/12.92:((v+.055)/1.055)**2.4);
 return .2126*l[0]+.7152*l[1]+.0722*l[2]}
function contrast(a,b){const [x,y]=[light(a),light(b)].sort((p,q)=>q-p);return (x+.05)/(y+.05)}
function behind(e){for(;e;e=e.parentElement){
 if(e.tagName==='svg')return colour(getComputedStyle(e.querySelector('.back')).fill);
 const c=colour(getComputedStyle(e).backgroundColor);if(c)return c}return [255,255,255]}
// The corners of a text's letters, turned as it is turned; two texts meet where no line along a side parts them.
function corners(t){const b=t.getBBox(),m=t.getScreenCTM(),x=b.x+1,y=b.y+3,r=b.x+b.width-1,d=b.y+b.height-3;
 return [[x,y],[r,y],[r,d],[x,d]].map(([p,q])=>[m.a*p+m.c*q+m.e,m.b*p+m.d*q+m.f])}
function meet(a,b){for(const s of [a,b])for(const i of [0,1]){
 const n=[s[i+1][1]-s[i][1],s[i][0]-s[i+1][0]],along=s=>s.map(p=>p[0]*n[0]+p[1]*n[1]);
 const p=along(a),q=along(b);if(Math.max(...p)<=Math.min(...q)||Math.max(...q)<=Math.min(...p))return false}
 return true}
function look(){
 const found={dark:matchMedia('(prefers-color-scheme: dark)').matches,overlaps:[],outside:[],faint:[],small:[],texts:0};
 for(const svg of document.querySelectorAll('svg')){
  const frame=svg.getBoundingClientRect(),texts=[...svg.querySelectorAll('text')];
  const boxes=texts.map(t=>t.getBoundingClientRect());
  texts.forEach((t,i)=>{const b=boxes[i];found.texts++;
   if(b.left<frame.left-1||b.right>frame.right+1||b.top<frame.top-1||b.bottom>frame.bottom+1)
    found.outside.push(t.textContent);
   for(let j=0;j<i;j++)if(meet(corners(t),corners(texts[j])))found.overlaps.push([texts[j].textContent,t.textContent]);
   if(contrast(colour(getComputedStyle(t).fill),behind(t))<4.5)found.faint.push(t.textContent);
   if(b.height<9)found.small.push(t.textContent)})}
 for(const e of document.querySelectorAll('h1,h2,p,td,th,b,span,summary')){
  if(contrast(colour(getComputedStyle(e).color),behind(e))<4.5)found.faint.push(e.textContent);
  if(e.offsetWidth&&e.scrollWidth>e.offsetWidth+1)found.overlaps.push([e.textContent,'cut'])}
 const rect=document.querySelector('svg rect.b'),tip=document.getElementById('tip');
 rect.dispatchEvent(new MouseEvent('mousemove',{bubbles:true,clientX:innerWidth-5,clientY:innerHeight-5}));
 const at=tip.getBoundingClientRect();
 found.tip=[tip.textContent,getComputedStyle(tip).visibility,at.right<=innerWidth&&at.bottom<=innerHeight];
 document.querySelector('h1').dispatchEvent(new MouseEvent('mousemove',{bubbles:true}));
 found.after=getComputedStyle(tip).visibility;
 found.fetched=performance.getEntriesByType('resource').length;
 found.wide=document.documentElement.scrollWidth-innerWidth;
 document.body.innerHTML='';document.body.textContent='LOOK'+JSON.stringify(found)+'KOOL'}
window.onerror=m=>{document.body.textContent='LOOK'+JSON.stringify({error:m})+'KOOL'};
onload=look;
</script>
"""


def looked_at(text, folder, *flags):
    """Return what the browser made of a page."""
    path = folder / "page.html"
    path.write_text(text.replace("</body>", LOOK + "</body>"))
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/user",
         "--window-size=1400,1000", *flags, "--dump-dom", path.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return json.loads(re.search("LOOK(.*)KOOL", done.stdout, re.DOTALL)[1].replace("&lt;", "<").replace("&amp;", "&"))


def small(families=1, width=16):
    """A plan of a chain of calls of several op families, with workspace, and with hostile names."""
    b = Builder()
    x = b.input((width, width), name='<img title="x"> & co')
    for number in range(families):
        x = b.call(ops.in_family(ops.matmul.op, f"family{number}"), x, x)
        x = b.call(ops.in_family(ops.relu.op, f"family{number}"), x)
    return plan(b.graph(x, name="a <b>model</b>"), ops.TARGET)


def traced():
    """A plan for a card whose cache is nearly twice as fast as its memory."""

    def net(x):  # a large product, and a single addition that is told to take long: roofs close together
        return nbx.softmax(nbx.matmul(x, x), axis=-1), x[:1, :1] + 1.0

    graph = nbx.trace(net, nbx.Spec((512, 512), "float32"), name="traced")
    return nbx.plan(graph, device=named("h200"))


def pages():
    few, many = small(), small(24, 512)
    nothing = Builder()
    yield "few", page(few, figures(few))
    yield "many", page(many, figures(many))
    times = [(n % 5 + 1) * 1e-6 for n in range(len(many.graph.nodes))]
    yield "measured", page(many, figures(many, times))
    card = traced()
    yield "two memories", page(card, figures(card, [1e-5, 1e-5, 10.0]))
    alone = plan(nothing.graph(nothing.input((4,))), ops.TARGET)
    yield "no node", page(alone, figures(alone))


@HERE
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_in_a_browser(dark, tmp_path):
    for name, text in pages():
        found = looked_at(text, tmp_path, f"--blink-settings=preferredColorScheme={0 if dark else 1}")
        assert "error" not in found, (name, found)
        assert found["dark"] is dark
        assert found["texts"] > 4
        for fault in ("overlaps", "outside", "faint", "small"):
            assert found[fault] == [], (name, fault)
        assert found["fetched"] == 0
        assert found["wide"] <= 0
        words, shown, inside = found["tip"]
        assert "bytes)" in words
        assert (shown, inside, found["after"]) == ("visible", True, "hidden")


@HERE
def test_a_narrow_window_scrolls_pictures_and_not_the_page(tmp_path):
    made = small(3, 512)
    found = looked_at(page(made, figures(made)), tmp_path, "--window-size=500,900")
    assert found["wide"] <= 0
    assert found["small"] == []


@HERE
def test_faults_are_seen(tmp_path):
    made = small()
    text = page(made, figures(made))
    broken = text.replace("--ink:#24313f", "--ink:#eeeeee").replace('y="48"', 'y="28"')
    found = looked_at(broken, tmp_path, "--blink-settings=preferredColorScheme=1")
    assert found["overlaps"]
    assert found["faint"]


def test_names_are_text_and_nothing_else():
    for _, text in pages():
        assert "<img" not in text
        assert "<b>model" not in text
        assert len(re.findall(r"""(?:src|href)\s*=|url\(|@import|fetch\(|https?:""", text)) == text.count(
            "http://www.w3.org/2000/svg"
        )
